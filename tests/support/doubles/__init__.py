"""Models that misbehave on purpose: manners, wire formats, and servers on a loopback port that speak them.

A manner reads a request as a real model does: which tools are offered, which are forced, whether the last reply was
refused. So the same manner works with every wire format, in text mode, and as a caller.
`python -m tests.support.doubles WIRE MANNER` serves one until it is stopped.
"""
