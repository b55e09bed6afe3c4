"""Recovery of any store into a clean one of version 2.

Finding the source (`loose`), planning the result (`plan`), building it (`build`), keeping damaged data (`salvage`), and
checking the result against the plan (`verify`).
"""
