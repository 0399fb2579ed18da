"""Parts that the HTTP servers of bookies and of gateways share: the table of operations, long jobs, and their work.

Not here: requests and answers, which the two servers have each in their own way.
"""
