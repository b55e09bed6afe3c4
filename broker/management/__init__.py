"""Management: the classes of QMF, as views of the model."""
