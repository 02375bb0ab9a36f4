"""Python clients of a spanpool node on this host: calls over its Unix socket, and memory that both map, so that no byte of an object
crosses a socket. docs/python.md walks through it, docs/engine.md is the protocol.

Client is for programs of your own; spanpool.umbp answers what inference engines call. Needs grpcio, protobuf and numpy.
"""
from spanpool.client import Client, Existence, Handle, Lists, Pattern, Placed, ReadSession, Reply, WriteSession
from spanpool.errors import (CallError, GoneError, LimitError, NoReplyError, NotQuietError, SpanpoolError, UnavailableError)
from spanpool.keys import Namespace, page_keys
from spanpool.memory import Memory

__all__ = ["CallError", "Client", "Existence", "GoneError", "Handle", "LimitError", "Lists", "Memory", "Namespace", "NoReplyError",
           "NotQuietError", "Pattern", "Placed", "ReadSession", "Reply", "SpanpoolError", "UnavailableError", "WriteSession", "page_keys"]
