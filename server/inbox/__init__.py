"""The inbox: the pages on which a person reads questions and decides them.

`pages/` and `saved/` hold the pages, one subject per module. The modules beside them hold what the pages share
(sessions, the request, questions, forms, the security middleware) and what serves them (port, launcher, web server).
"""
