"""How bytes reach a downstream server: a child process over stdio, or Streamable HTTP."""
