"""Everything private of Flower that a federation needs, in one place: Flower may move it with any version.

Each name is loaded on first use, because some load a whole SuperLink. Public names come from `flwr.app`,
`flwr.clientapp` and `flwr.serverapp` and are imported where they are used.
"""

from importlib import import_module
from importlib.metadata import version
from typing import Any

SUPPORTED = "flwr>=1.41,<1.43"
PRIVATE = {  # module of Flower → names
    "flwr.app.message": "remove_content_from_message",
    "flwr.cli.build": "build_fab_from_disk",
    "flwr.cli.install": "install_from_fab",
    "flwr.clientapp.utils": "get_load_client_app_fn",
    "flwr.common.config": "get_fused_config_from_fab get_project_dir",
    "flwr.common.constant": "ErrorCode",
    "flwr.common.secure_aggregation.crypto.shamir": "combine_shares create_shares",
    "flwr.common.secure_aggregation.crypto.symmetric_encryption": "decrypt encrypt generate_shared_key",
    "flwr.common.secure_aggregation.secaggplus_utils": (
        "share_keys_plaintext_concat share_keys_plaintext_separate"
    ),
    "flwr.common.serde": (
        "fab_from_proto fab_to_proto message_from_proto message_to_proto run_from_proto user_config_to_proto"
    ),
    "flwr.proto.control_pb2": "ListRunsRequest RegisterNodeRequest StartRunRequest StopRunRequest",
    "flwr.proto.fab_pb2": "GetFabRequest",
    "flwr.proto.fleet_pb2": ("ActivateNodeRequest DeactivateNodeRequest PullMessagesRequest PushMessagesRequest"),
    "flwr.proto.heartbeat_pb2": "SendNodeHeartbeatRequest",
    "flwr.proto.message_pb2": "ConfirmMessageReceivedRequest",
    "flwr.proto.node_pb2": "Node",
    "flwr.proto.run_pb2": "GetRunRequest",
    "flwr.proto.runtime_pb2": "PullAppMessagesRequest",
    "flwr.supercore.cli": "flower_superexec",
    "flwr.supercore.control": "ControlHttpClient",
    "flwr.supercore.constant": "TASK_TOKEN_HEADER",
    "flwr.supercore.dependencies.runtime": "get_runtime_handlers get_runtime_state",
    "flwr.supercore.dependencies.task": "authenticate_task",
    "flwr.supercore.error": "http_error_translator",
    "flwr.supercore.fab": "Fab",
    "flwr.supercore.inflatable.inflatable_object": (
        "get_all_nested_objects get_object_tree iterate_object_tree no_object_id_recompute"
    ),
    "flwr.supercore.inflatable.inflatable_protobuf_utils": (
        "make_pull_object_fn_protobuf make_push_object_fn_protobuf"
    ),
    "flwr.supercore.inflatable.inflatable_utils": (
        "ObjectPullError ObjectPushError ObjectUnavailableError inflate_object_from_contents pull_objects "
        "push_objects"
    ),
    "flwr.supercore.interceptors": "RuntimeVersionHttpInterceptor",
    "flwr.supercore.primitives.asymmetric": (
        "bytes_to_private_key bytes_to_public_key generate_key_pairs private_key_to_bytes public_key_to_bytes "
        "verify_signature"
    ),
    "flwr.supercore.protobuf.constants": "PROTOBUF_MEDIA_TYPE",
    "flwr.supercore.protobuf.translation": "PROTOBUF_REQUEST_TYPES",
    "flwr.supercore.task_identity": "TaskIdentity",
    "flwr.superlink.cli.flower_superlink": "flower_superlink",
    "flwr.superlink.dependencies.linkstate": "get_linkstate",
    "flwr.superlink.routers.fleet.node_auth": "authenticate_node",
    "flwr.superlink.routers.fleet.router": (
        "fleet_confirm_message_received fleet_pull_messages fleet_pull_object fleet_push_messages "
        "fleet_push_object fleet_send_node_heartbeat"
    ),
    "flwr.supernode.fleet_http_client": "FleetHttpClient",
    "flwr.supernode.node_auth_http_interceptor": "NodeAuthHttpInterceptor",
}
HOMES = {name: (module, name) for module, names in PRIVATE.items() for name in names.split()}
HOMES |= {
    f"runtime_{name}": ("flwr.supercore.routers.runtime.router", name)
    for name in ("confirm_message_received", "pull_messages", "pull_object", "push_messages", "push_object")
}
HOMES |= {
    "DecodeError": ("google.protobuf.message", "DecodeError"),
    "ProtoMessage": ("flwr.proto.message_pb2", "Message"),
    "extensions": ("flwr.superlink.extensions", ""),
    "subprocess_executor": ("flwr.supercore.superexec.executor.subprocess_executor", ""),
}


def __getattr__(name: str) -> Any:
    """Load a name of Flower; raises ImportError, with the versions that have it, if it is not there."""
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = HOMES[name]
    try:
        home = import_module(module)
        return getattr(home, attribute) if attribute else home
    except (ImportError, AttributeError) as error:
        moved = f"{f'{module}.{attribute}'.strip('.')} of Flower, which a federation needs, is not there"
        raise ImportError(f"{moved}: install {SUPPORTED}, got flwr {version('flwr')} ({error})") from error


def functions(prefix: str, root: str) -> dict[str, Any]:
    """Path of an interface → Flower's function for it, of all that are named here with this prefix."""
    names = [name for name in HOMES if name.startswith(prefix)]
    return {root + name.removeprefix(prefix).replace("_", "-"): __getattr__(name) for name in names}


def runtime(grid: Any) -> Any:
    """The client of a Grid's SuperLink, which pulls messages and their parts one by one."""
    return grid._runtime_client


def give_up_after(grid: Any, seconds: float) -> None:
    """Let the calls of a Grid end after so many seconds: it would repeat them for ever."""
    grid._retry_invoker.max_time = seconds


def time_out_after(client: Any, seconds: float) -> None:
    """Let a call of a FleetHttpClient end after so many seconds: 30 are long for a cable that was pulled."""
    client._client.timeout = seconds


def stay_connected(client: Any, seconds: float) -> None:
    """Let a FleetHttpClient keep its connection so long without a request: another one costs a handshake."""
    client._client._transport._pool._keepalive_expiry = seconds


def set_message_id(message: Any, name: str) -> None:
    """Give a message the name under which the SuperLink keeps it."""
    message.metadata.__dict__["_message_id"] = name
