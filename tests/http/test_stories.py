"""The built-in model, as a server without flags serves it, tells what PyTorch tells."""

import pytest

from data import REFERENCE, golden, make_model, same_bits
from language import ids_of, text_of

FOLDER = REFERENCE.parents[1] / "engine" / "models" / "stories"
TENSORS, TEXTS = golden("stories")
PROMPT, GREEDY = TENSORS["prompt"].tolist(), TENSORS["greedy"].tolist()


@pytest.fixture(scope="module")
def stories(launch_for_module):
    return launch_for_module(default_model=None).client


def test_it_is_the_default_model(stories):
    found = stories.get("/models").ok()
    assert found["default"] == found["models"][0]["name"] == "stories"
    model = found["models"][0]
    assert model["built_in"] and model["tokenizer"] and not model["random_weights"]
    assert (model["model_type"], model["torch_dtype"]) == ("minimind", "bfloat16")


def test_its_tokenizer(stories):
    text = TEXTS["text"] + TEXTS["told"]
    assert stories.post("/tokenize", {"text": TEXTS["text"]}).ok()["tokens"] == PROMPT
    assert stories.post("/detokenize", {"tokens": PROMPT + GREEDY}).ok()["text"] == text
    tokens = stories.post("/tokenize", {"text": text, "add_special": False}).ok()["tokens"]
    assert stories.post("/detokenize", {"tokens": tokens}).ok()["text"] == text


def test_a_story(stories, sid):
    reply = stories.prefill(session=sid, text=TEXTS["text"])
    assert reply["model"] == "stories" and reply["tokens"] == PROMPT
    assert reply["next"][0]["token"] == GREEDY[0]
    stream = stories.stream(session=sid, steps=len(GREEDY))
    steps = stream.rest()
    assert ids_of(steps) == GREEDY
    assert text_of(steps, stream.done) == TEXTS["told"]
    assert stories.get(f"/sessions/{sid}/tokens").ok()["text"] == TEXTS["text"] + TEXTS["told"]
    assert stories.verify(sid)["bit_identical"]


def test_a_story_ends(stories, sid):
    """The model has learnt where a story ends: long before its positions do."""
    stories.prefill(session=sid, text=TEXTS["text"])
    reply = stories.decode(session=sid, steps=512)
    assert reply["reason"] == "stop"


def test_its_folder(launch):
    """Given as a --model, the folder that is built in gives the same bits."""
    client = launch("--model", f"copy={FOLDER}").client
    replies = [
        client.prefill(model=name, text=TEXTS["text"] + TEXTS["told"], logits=True)
        for name in ("copy", "stories")
    ]
    assert replies[0]["tokens"] == replies[1]["tokens"]
    assert same_bits(replies[0]["logits"], replies[1]["logits"])


def test_it_can_be_replaced(launch, tmp_path):
    """A folder of that name takes its place."""
    flags = make_model(tmp_path / "stories", 1, hidden=24, heads=3, kv_heads=1, head_dim=10)
    found = launch(*flags).client.get("/models").ok()
    assert [model["name"] for model in found["models"]] == ["stories", "seed-attention"]
    assert found["default"] == "stories" and not found["models"][0]["built_in"]
