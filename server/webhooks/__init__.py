"""Standard Webhooks (https://www.standardwebhooks.com): secrets, signatures, and the operator's `[hooks.NAME]` tables.

Notifications sign what they send with it, and the HTTP server checks what comes to `/hooks/NAME`. Nothing here sends,
receives or starts anything.
"""
