"""Why a client cannot work with the link, in sentences that name the remedy."""

import datetime
from email.utils import parsedate_to_datetime

import httpx

AHEAD, BEHIND = 5.0, 305.0  # seconds that Flower lets a client's clock be wrong


def unreachable(address: str, error: httpx.TransportError) -> str:
    """Why the link cannot be reached, and what to do."""
    text, host = str(error), address.rpartition(":")[0]
    if "CERTIFICATE_VERIFY_FAILED" in text and "mismatch" in text:
        return f"the certificate of the link is not for the name {host}: make it with `init --names {host}`"
    if "CERTIFICATE_VERIFY_FAILED" in text:
        fix = "take keys/ca.pem from the server's folder again, unless this is another server"
        return f"the authority in keys/ca.pem has not certified the link at {address}: {fix}"
    if "SSL" in text:
        return f"the link at {address} does not use TLS as `tls` in federation.toml says: {text}"
    return f"the link at {address} cannot be reached ({text or type(error).__name__}); trying again"


def refusal(response: httpx.Response) -> str:
    """Why the link refuses a client, and what to do."""
    if response.status_code == 412:
        fix = "it is not registered (`fedstale federation up` on the server registers the keys of the roster)"
        return f"the link does not admit this key: {fix}, or the same key is online elsewhere"
    ahead = _ahead(response)
    if not 1 - BEHIND < ahead < AHEAD - 1:  # the link tells its time to the second
        wrong = f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'}"
        allowed = f"{AHEAD:.0f} s ahead and {BEHIND:.0f} s behind are allowed"
        return f"the clock of this machine is {wrong} the link's: set it, {allowed}"
    return "the link does not accept the signature: this private key is not the one that is registered"


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _ahead(response: httpx.Response) -> float:
    """How many seconds this machine's clock is ahead of the link's; 0 if the response does not tell."""
    try:
        return (_now() - parsedate_to_datetime(response.headers["date"])).total_seconds()
    except (KeyError, TypeError, ValueError):
        return 0.0
