"""The HTML report: one file for one run or many, and the same page live."""
