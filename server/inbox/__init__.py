"""The inbox: the pages on which a person reads questions and decides them.

`pages/` holds the pages, one subject per module. The modules beside it hold what the pages share (sessions, requests,
questions, forms) and what serves them (the app with its security middleware, port, launcher, web server).
"""
