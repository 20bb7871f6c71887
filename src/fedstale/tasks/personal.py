"""Which parts of a model stay with each client: layers that the user names, and FedBN's normalisation layers."""

from collections.abc import Sequence

from torch import nn
from torch.nn.modules.batchnorm import _NormBase  # of BatchNorm and InstanceNorm

from fedstale.core import require, shown
from fedstale.tasks.flat import trained


def personal_names(module: nn.Module, personal: Sequence[str], norms: bool) -> tuple[str, ...]:
    """The trained parameters that stay with the client: those named, or below a name, and those of `norms`."""
    ok = not isinstance(personal, str) and all(isinstance(name, str) for name in personal)
    require(ok, f'personal must be names of layers or parameters, such as ["head"], got {shown(personal)}')
    names, layers = [*trained(module)], [*personal]
    for layer in personal:
        top = ", ".join(dict.fromkeys(name.partition(".")[0] for name in names))
        found = any(_below(name, layer) for name in names)
        require(found, f"personal must name trained parameters, got {layer!r}; the model has {top}")
    layers += normalisations(module) if norms else []
    kept = tuple(name for name in names if any(_below(name, layer) for layer in layers))
    require(
        len(kept) < len(names), f"a parameter must be shared by all clients, got none besides {', '.join(layers)}"
    )
    return kept


def normalisations(module: nn.Module) -> list[str]:
    """The layers that normalise with running statistics."""
    return [name for name, layer in module.named_modules() if isinstance(layer, _NormBase)]


def _below(name: str, layer: str) -> bool:
    return name == layer or name.startswith(f"{layer}.")
