"""Usage, quotas and audit events of namespaces are counted, published and queued here; requests are held back in
`bookie/service`.
"""
