"""Models that misbehave on purpose: manners, the wire formats that they speak, and loopback servers that speak them.

A manner decides from what it was asked, like a real model: which tools were offered, which were forced, whether the
last answer was refused. The same manner therefore runs over every wire format, in text mode, and as a caller.
`python -m tests.support.doubles WIRE MANNER` serves one until it is stopped.
"""
