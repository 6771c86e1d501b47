#!/usr/bin/env python3
"""evaluation_tasks.py: writes the lines of the tasks in tests/evaluation from what the small trained model did not see in training.

Needs nothing but Python. lm_eval_check.py says how the tasks are used.
"""
import json
import pathlib
import random

TESTS = pathlib.Path(__file__).parents[1]
BEGINNINGS = {  # and the words that follow
    "And it came to": "pass", "Thus saith the LORD of": "hosts", "In the beginning God created the heaven and the": "earth",
    "And the LORD spake unto Moses,": "saying", "For the wages of sin is": "death", "Blessed are the poor in": "spirit",
    "Our Father which art in": "heaven", "The LORD is my": "shepherd", "And God saw that it was": "good", "Verily, verily, I say unto": "you",
    "And the children of": "Israel", "I am the LORD your": "God", "Grace be unto you, and peace, from God our Father, and the Lord Jesus": "Christ",
    "Thou shalt not": "kill", "And Jesus answered and said unto": "them", "the kingdom of": "heaven", "And David said unto": "Nathan",
    "Hear, O Israel: The LORD our God is one": "LORD", "And the king of": "Babylon", "Glory to God in the": "highest",
    "and he did that which was evil in the sight of the": "LORD", "the tabernacle of the": "congregation", "a sweet savour unto the": "LORD",
    "And he said unto": "him"}


def write(name, documents):
    path = TESTS / f"evaluation/{name}.jsonl"
    path.write_text("".join(json.dumps(document) + "\n" for document in documents), encoding="utf-8")
    print(f"{path}: {len(documents)} lines, {path.stat().st_size} bytes")


def main():
    passages = [json.loads(line)["text"] for line in (TESTS / "golden/kjv-moe/held-out.jsonl").read_text(encoding="utf-8").splitlines()]
    verses = [passage.split("\n") for passage in passages if passage.count("\n") >= 2]
    draw = random.Random(1611)

    # Which verse follows? The others are from elsewhere. Some contexts are longer than the model's 1024 positions.
    choices = []
    for number, own in enumerate(verses[::3]):
        wrong = [draw.choice(draw.choice(verses)) for _ in range(3)]
        answer = draw.randrange(4)
        context = "\n".join(passages[:5] + [own[0]]) if number % 12 == 11 else own[0]
        choices.append({"context": context, "choices": wrong[:answer] + [own[1]] + wrong[answer:], "answer": answer})
    # Which word follows? Mostly one token, so that the choices of a context differ in their last token alone.
    words = sorted({f" {word}" for word in BEGINNINGS.values()})
    for context, word in BEGINNINGS.items():
        wrong = draw.sample([other for other in words if other != f" {word}"], 3)
        choices.append({"context": context, "choices": [*wrong, f" {word}"], "answer": 3})
    for document in choices:  # the delimiter is a part of the choice
        if not document["choices"][0].startswith(" "):
            document["choices"] = [f"\n{choice}" for choice in document["choices"]]
    write("choices", choices)

    # Texts of one to eight passages: up to some 2700 tokens.
    lengths = [1, 1, 2, 3, 4, 5, 6, 7, 8, 1, 1]
    texts = [{"text": "\n".join(passages[sum(lengths[:at]):sum(lengths[:at + 1])])} for at in range(len(lengths))]
    write("texts", texts + [{"text": "Amen."}, {"text": "A"}, {"text": "Blessed be the Lord God of Israel; é, 日本語."}])

    # What follows? The last contexts are longer than the model.
    beginnings = [{"context": context, "answer": word} for context, word in BEGINNINGS.items()]
    beginnings += [{"context": " ".join(own[0].split()[:7]), "answer": " ".join(own[0].split()[7:9])} for own in verses[1::7]]
    beginnings += [{"context": "\n".join(passages[at:at + 6]) + "\nAnd", "answer": "the LORD"} for at in (20, 40)]
    write("beginnings", beginnings)

    # A conversation: what the next verse is.
    write("verses", [{"context": own[0], "answer": own[1], "begun": " ".join(own[1].split()[:2])} for own in verses[2::10]])


if __name__ == "__main__":
    main()
