"""federation.toml: what is trained, how a round is run, and where the link listens."""

import hashlib
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from fedstale.core import BadInput, Local, WithTruth, hooks_of, require
from fedstale.core.own_modules import import_from
from fedstale.flower.federation.state.server_state import Rules, private, require_asynchronous, require_root
from fedstale.lab.runs.store import canonical
from fedstale.lab.schema import Section, Training, load, validated
from fedstale.lab.spec import Algorithm, Spec, Table, algorithm, as_table, build, make, make_section
from fedstale.memory.memory import at_clients
from fedstale.participation.clock import Pace
from fedstale.privacy.sums import Summed
from fedstale.registry import PACES, sources

Positive = Annotated[float, Field(gt=0)]
Name = Annotated[str, Field(pattern=r"^[\w.-]+$")]
HOST = re.compile(r"[A-Za-z0-9._:-]{1,253}")  # a name in ASCII, or an address


class LinkSection(Section):
    """Where the SuperLink listens: on this machine only, unless `host` is another address."""

    host: Annotated[str, Field(pattern=f"^{HOST.pattern}$")] = "127.0.0.1"
    port: Annotated[int, Field(ge=1, le=65535)] = 9100
    tls: bool = True  # off: nothing is encrypted, and who listens can act as a client; for trying things out


class RoundSection(Section):
    """How long a round waits, and which replies count."""

    deadline: Positive = 120.0  # seconds; a later reply is refused
    quorum: Annotated[int, Field(ge=0)] = 1  # a round with fewer good replies is void and tried again
    target: Annotated[int, Field(ge=0)] = 0  # a round closes with this many good replies; 0: it waits for all
    ask: Annotated[float, Field(ge=1)] = 1.0  # clients that are asked, as a multiple of the target
    evaluate: Annotated[int, Field(ge=0)] = 0  # clients evaluate the model after every so many rounds; 0: never
    poll: Positive = 1.0  # seconds between two pulls of replies, at most
    group: Annotated[int, Field(ge=1)] = 4  # messages in memory at once
    retries: Annotated[int, Field(ge=0)] = 3  # void rounds in a row before the server gives up
    enough_weight: Annotated[float, Field(ge=0, le=1)] = 0.0  # `run` ends with 5 if the last rounds heard less


class HealthSection(Section):
    """Where a running server answers /health and /metrics, on 127.0.0.1; nowhere without a port."""

    port: Annotated[int, Field(ge=1, le=65535)] | None = None


class Federation(Section):
    """The keys of federation.toml."""

    name: Name
    rounds: Annotated[int, Field(ge=1)]
    seed: Annotated[int, Field(ge=0)] = 1
    app: str = "app"  # the Flower app's folder, from here
    strategy: Spec = "auto"
    estimator: Spec | None = None  # the recipe's if left out; intervals if it has none
    server: Spec = "sgd"
    pace: Spec | None = None  # buffer or ticks: the server waits for nobody; rounds if left out
    defence: bool | Table = True  # false, or a table of settings: how updates are judged before they count
    privacy: Table | None = None  # noise, and perhaps epsilon and delta: no defence then
    local: Training
    round: RoundSection = RoundSection()
    link: LinkSection = LinkSection()
    health: HealthSection = HealthSection()


class Settings(NamedTuple):
    """A checked federation.toml."""

    folder: Path
    file: Federation
    rules: Rules
    algorithm: Algorithm
    pace: Pace | None = None

    @property
    def local(self) -> Local:
        return self.algorithm.local

    @property
    def run(self) -> str:
        """Digest of the settings that the state depends on; a state of another digest is not resumed."""
        described = self.algorithm.described()
        kept = ("strategy", "estimator", "server", "local")
        parts = {"seed": self.file.seed} | {key: described[key] for key in kept}
        own = sources(parts)
        parts |= {"sources": own} if own else {}
        parts |= {} if self.file.defence is True else {"defence": self.file.defence}
        privacy = self.rules.privacy  # noise and budget may change: the ledger adds up what was told with each
        parts |= {} if privacy is None else {"privacy": {"delta": privacy.delta}}
        return hashlib.sha256(canonical(parts).encode()).hexdigest()[:16]

    @property
    def app(self) -> Path:
        return (self.folder / self.file.app).resolve()

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def roster(self) -> Path:
        return self.folder / "roster.json"

    def own(self, client: int) -> Path:
        """Where a client keeps what stays with it, on its own machine."""
        return (self.folder / "own" / str(client)).resolve()


def read(folder: Path) -> Settings:
    """The federation in a folder."""
    path = folder / "federation.toml"
    require(path.is_file(), f"there is no {path}; `fedstale federation init {folder}` makes one")
    return check(folder, load(path, "federation"))


def parse(folder: Path, text: str) -> Settings:
    """The federation that the text of a federation.toml describes."""
    import_from(folder)
    try:
        return check(folder, tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"{folder / 'federation.toml'} is not a TOML file: {error}") from None


def check(folder: Path, raw: dict[str, Any]) -> Settings:
    """The federation that the keys of a federation.toml describe."""
    old = isinstance(how := raw.get("round"), dict) and "norm_factor" in how
    way = "remove it; `defence = false` turns it off, and a section [defence] has its settings"
    require(not old, f"round.norm_factor is gone, because a defence judges the norms now: {way}")
    file = validated(Federation, raw, "")
    entry = as_table(file.strategy, "strategy")
    if file.estimator is not None:
        entry.setdefault("estimator", file.estimator)
    local = file.local.settings()
    make(Local, local, "local")
    a = algorithm(entry, "strategy", local=local, estimator="intervals", server=file.server, channel=None)
    ok = not (isinstance(a.estimator, WithTruth) and a.estimator.needs_truth)
    require(ok, 'estimator "known" needs p, one probability per client: a real federation does not know them')
    ok = hooks_of(a.strategy).drift is None or a.local.steps is not None
    require(ok, f"{a.label} needs local.steps: a server does not know the epochs or the work of its clients")
    ok = not (hooks_of(a.strategy).starts or hooks_of(a.strategy).needs_last_gradient)
    require(ok, f"{a.label} is for simulations: real clients begin at the parameters sent and return updates only")
    own = "real clients bring their training loop in their app, as client_app(…, train=…), not in local.train"
    require(a.local.train is None, f"{own}, got {a.local.train!r}")
    _check_target(file.round, a)
    pace: Pace | None = None if file.pace is None else build(file.pace, PACES, "pace")
    if pace is not None:
        require_asynchronous(pace, a.strategy, file.defence is not False)
        target = file.round.target
        require(target == 0, f"round.target is for rounds: it must be 0 with a pace, got {target}")
    by_clients = at_clients(a.strategy)
    undefended = (by_clients or file.privacy is not None) and "defence" not in file.model_fields_set
    rules = Rules(a.strategy, a.estimator, a.server, make_section("defence", not undefended and file.defence))
    require_root(rules.defence)
    if file.privacy is not None:
        require(not by_clients, 'noise and epsilon need the memory at the server, got memory = "clients"')
        rules = _private(rules, file, pace)
    return Settings(folder, file, _at_clients(rules, pace) if by_clients else rules, a, pace)


def _at_clients(rules: Rules, pace: Pace | None) -> Rules:
    """The rules of a server that has sums only."""
    hidden = "which a server that has sums only cannot: set it to false"
    require(rules.defence is None, f'a defence judges single updates, {hidden}, or leave out memory = "clients"')
    require(pace is None, 'memory = "clients" needs rounds, in which memories are counted: leave out the pace')
    return rules._replace(strategy=Summed(rules.strategy, deployed=True))


def _private(rules: Rules, file: Federation, pace: Pace | None) -> Rules:
    """The rules with noise on every step."""
    rule = private(rules.strategy, make_section("privacy", file.privacy), rules.defence, pace)
    every = file.round.evaluate
    require(every == 0, f"no noise covers scores of clients: round.evaluate must be 0 with privacy, got {every}")
    return rules._replace(strategy=rule)


def _check_target(how: RoundSection, a: Algorithm) -> None:
    ok = how.target == 0 or how.target >= how.quorum
    require(ok, f"round.target must be 0 or at least the quorum, {how.quorum}, got {how.target}")
    ok = how.target == 0 or hooks_of(a.strategy).select is None
    require(ok, f"round.target must be 0 with {a.label}, which selects the clients itself, got {how.target}")
    ok = how.target > 0 or how.ask == 1
    require(ok, f"round.ask is a multiple of round.target, which must be above 0, got ask = {how.ask:g}")
