"""Management: the classes of the QMF schema as views of the model."""
