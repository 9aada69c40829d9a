"""Tables of runs: rows × columns × seeds of configs, run, measured and compared.

Start with `fedssl.tables.table` (the definition of a table) and `fedssl.tables.campaign` (which runs tables).
"""
