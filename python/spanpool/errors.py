"""What a call can end with instead of an answer. What became of a single key is no exception: it is a status in the answer."""


class SpanpoolError(Exception):
    """Every error of this package. kind is one word, the same for the same cause: what is logged once per kind."""

    kind = "error"


class UnavailableError(SpanpoolError):
    """There is no node at the socket, or it is stopping. Nothing touches the call's memory."""

    kind = "unavailable"


class NoReplyError(SpanpoolError):
    """The call ended without an answer (its time was over, the connection broke), and has let go of its memory since."""

    kind = "no reply"


class NotQuietError(SpanpoolError):
    """The call ended without an answer, and the node did not say in time that it has let go of the call's memory: a node that is stopped
    in mid copy may go on when it is continued. The memory is the caller's again once Client.quiesce has returned."""

    kind = "not quiet"


class GoneError(SpanpoolError):
    """A session of a node that was started anew since, or that let this client go. Nothing touches the call's memory."""

    kind = "gone"


class LimitError(SpanpoolError):
    """More was asked for than a limit of the node's allows; the text names both."""

    kind = "limit"


class CallError(SpanpoolError):
    """The call was refused as a whole: it is malformed, or names what is not there. code is the name of a status of gRPC."""

    kind = "refused"

    def __init__(self, code: str, reason: str):
        super().__init__(f"{code}: {reason}")
        self.code = code
