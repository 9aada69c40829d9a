"""Tables of runs: rows × columns × seeds of configs, run, measured and compared.

Start with `fedssl.tables.table` (what a table is) and `fedssl.tables.campaign` (which runs it).
"""
