"""Recovery of any store into a clean one of version 2.

What there is (`loose`), what is made of it (`plan`), how it is built (`build`), what is damaged and kept (`salvage`),
and whether the result is what was planned (`verify`).
"""
