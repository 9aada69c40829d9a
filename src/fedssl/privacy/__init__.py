"""What stands between an upload and the aggregate: clipping, noise, accounting, secure aggregation, audits.

Methods and aggregation rules know nothing of this package.
"""
