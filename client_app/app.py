"""Entry of the client: query, train and evaluate go to the method's trainer."""

from __future__ import annotations

from flwr.clientapp import ClientApp
from flwr.common import Context, Message

app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    """Tell the server who this client is, or why it cannot take part."""
    from client_app.node import inference_macs, label, open_client
    from common.protocol import Identity, refusal
    from common.settings import parse_settings
    from common.versions import version_line

    try:
        client = open_client(parse_settings(context.run_config), context)
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
    from client_app.node import open_session

    session = open_session(message, context, repeats=True)
    reply, state = session.trainer.train(session.request, session.state)
    state.require_finite(session.store.where)
    answer = Message(reply.to_records(), reply_to=message)
    session.store.save(state, session.request.checkpoint)
    return answer


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate the personal network."""
    from client_app.node import open_session

    session = open_session(message, context)
    reply = session.trainer.evaluate(session.request, session.state)
    return Message(reply.to_records(), reply_to=message)
