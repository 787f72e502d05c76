"""Entry of the client: query, train and evaluate go to the method's trainer."""

from __future__ import annotations

from flwr.clientapp import ClientApp
from flwr.common import Context, Message

app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    """Tell the server who this client is, or why it cannot take part."""
    from client_app.deadline import end_after
    from client_app.node import inference_macs, label, open_client, require_memory
    from common.protocol import Identity, refusal
    from common.settings import parse_settings
    from common.versions import version_line

    try:
        with end_after(message.metadata.ttl):
            settings = parse_settings(context.run_config)
            client = open_client(settings, context)
            require_memory(settings, client)
            macs = inference_macs(client.model, client.data.spec)
    except (ValueError, OSError, ImportError) as error:  # what the operator can mend
        return Message(refusal(f"{label(context)}: {error}"), reply_to=message)
    identity = Identity(
        client=client.name,
        num_train=len(client.data.train),
        num_test=len(client.data.test),
        model=client.model,
        macs=macs,
        device=str(client.device),
        versions=version_line(),
    )
    return Message(identity.to_records(), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train for one round; the new personal state is stored last."""
    from client_app.deadline import end_after
    from client_app.node import open_session
    from client_app.personal_state import StateError
    from client_app.telemetry import Meter

    limit = end_after(message.metadata.ttl)
    with limit, open_session(message, context, training=True) as session:
        with Meter(session.trainer.client.device) as meter:
            reply, state = session.trainer.train(session.request, session.state)
        state.require_finite(session.store.where)
        answer = Message(session.answer(reply, meter.metrics()), reply_to=message)
        try:
            session.store.save(state, session.request.checkpoint)
        except OSError as error:
            raise StateError(
                f"{session.store.where} cannot be written ({error}), it keeps its last "
                "good state: free space or mend the folder's permissions"
            ) from error
    return answer


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate the personal network."""
    from client_app.deadline import end_after
    from client_app.node import open_session

    with end_after(message.metadata.ttl), open_session(message, context) as session:
        reply = session.trainer.evaluate(session.request, session.state)
    return Message(session.answer(reply), reply_to=message)
