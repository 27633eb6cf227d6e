"""The inbox: pages on which a person reads questions and decides them.

`pages/` and `keys/` hold one page a module; the modules beside them hold what every page needs: who may enter, the request,
the facts, the form, the security headers.
"""
