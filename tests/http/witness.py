"""A session that nobody may touch, and bad requests that try."""

import json

from data import HIDDEN, bits, rows

WITNESS = "witness"
ROW = [0.5] * HIDDEN
# A body that would be right; its session exists only if a bad request was taken for a good one.
GOOD = json.dumps({"session": "bad", "inputs": [ROW]}).encode()

_INPUTS = rows(8)


class Witness:
    """The session, and the server it lives in."""

    def __init__(self, client):
        self.client = client
        client.prefill(session=WITNESS, inputs=_INPUTS[:7])
        self._output = self._next()

    def _next(self):
        output = bits(self.client.decode(session=WITNESS, input=_INPUTS[7])["output"])
        self.client.truncate(WITNESS, 7)
        return output

    def check(self):
        """The server answers, the session is as long as before and gives the same next bits."""
        assert self.client.session(WITNESS)["length"] == 7
        assert (self._next() == self._output).all()
        if self.client.exists("bad"):
            self.client.delete("bad")
            raise AssertionError("the bad request made a session")
