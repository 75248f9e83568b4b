"""Writes simple English children's stories from a story grammar, one story a line.

    compose.py --first-seed 0 --stories 40000 > composed.txt

Story i depends only on its seed, first-seed + i, so the same arguments always write the same bytes.
A line break inside a story is written as a tab. As a module, story(seed) is the same text with its
line breaks.

Each story follows one plot, a function of PLOTS, which fills slots (who, what, where) and returns a
template. A template is text with these marks:

    {slot}            the slot's value, the same all through the story; {Slot} begins with a capital
    <table>           one entry of TABLES, drawn afresh at each place
    [one|two|]        one of the alternatives, which may be empty, and may hold other marks
    /                 a place where a paragraph may end
    ((who: Speech.))  direct speech of slot `who`, in one of several forms; ((who/cried: ...)) fixes
                      the verb
"""

import argparse
import random
import re
import sys

FEWEST_WORDS = 60
MOST_WORDS = 150

GIRLS = """Lily Mia Anna Emma Sue Lucy Amy Ella Zoe Rose Ruby Molly Nina Sara Kate Jane Daisy Grace
Lola Maya Ivy Bella Tina Polly Nora Hana Rita Ada Eva Lena Poppy Holly Tara Sofia Clara Alice Annie
Betty Penny Kitty Jenny Sally Mary Lisa""".split()

BOYS = """Tom Tim Ben Max Sam Jack Leo Finn Bob Dan Joe Nick Luke Adam Noah Omar Hugo Oscar Peter
Billy Jake Mark Theo Alex Ravi Kofi Eddie Toby Paul Henry Charlie Fred Ted Sid Andy Oliver Jimmy
Johnny Bobby Danny Tommy Timmy Benny Sammy""".split()

PETS = """Spot Fluffy Buddy Coco Patch Bingo Biscuit Pepper Snowy Ginger Pip Dot Sunny Peanut Muffin
Pickle Rusty Shadow Honey Ziggy Waffle Button Cookie Nibble Tiny Bouncy""".split()

# Animal, the sound it makes, how it moved, what it ate, where it lived.
ANIMALS = [
    ("cat", "meow", "ran", "fish", "in a warm barn"),
    ("dog", "woof", "ran", "a bone", "in a small house"),
    ("duck", "quack", "swam", "bread", "by a quiet pond"),
    ("pig", "oink", "ran", "corn", "on a farm"),
    ("sheep", "baa", "walked", "grass", "on a green hill"),
    ("horse", "neigh", "ran", "hay", "on a farm"),
    ("cow", "moo", "walked", "grass", "on a farm"),
    ("frog", "croak", "hopped", "a fly", "by a quiet pond"),
    ("owl", "hoot", "flew", "seeds", "in an old tree"),
    ("lion", "roar", "ran", "meat", "in the warm sun"),
    ("bear", "grr", "walked", "honey", "in a dark cave"),
    ("mouse", "squeak", "ran", "cheese", "in a tiny hole"),
    ("bird", "tweet", "flew", "seeds", "in a tall tree"),
    ("hen", "cluck", "walked", "corn", "on a farm"),
    ("goat", "maa", "jumped", "grass", "on a high hill"),
    ("rabbit", "sniff", "hopped", "a carrot", "in a cozy hole"),
    ("fox", "yip", "ran", "berries", "in the forest"),
    ("turtle", "hum", "walked", "leaves", "by a blue lake"),
    ("squirrel", "chip", "jumped", "nuts", "in a big oak tree"),
    ("hedgehog", "snuff", "walked", "apples", "under a big bush"),
    ("elephant", "toot", "walked", "leaves", "by a wide river"),
    ("monkey", "ooh", "jumped", "a banana", "in the tall trees"),
    ("deer", "hum", "ran", "grass", "in the forest"),
    ("penguin", "honk", "swam", "fish", "on the white ice"),
    ("tiger", "roar", "ran", "meat", "in the forest"),
    ("donkey", "hee-haw", "walked", "hay", "on a farm"),
    ("goose", "honk", "swam", "corn", "by a blue lake"),
    ("snail", "hum", "crept", "leaves", "in a wet garden"),
]
FARM = [animal for animal in ANIMALS if animal[0] in
        ("cat", "dog", "duck", "pig", "sheep", "horse", "cow", "hen", "goat", "donkey", "goose")]
WOODS = [animal for animal in ANIMALS if animal[0] in
         ("frog", "owl", "bear", "mouse", "bird", "rabbit", "fox", "turtle", "squirrel",
          "hedgehog", "deer", "duck", "snail")]

FAST = ("cat", "dog", "horse", "lion", "rabbit", "fox", "deer", "tiger", "goat", "monkey")
SLOW = ("duck", "pig", "sheep", "cow", "hen", "turtle", "hedgehog", "penguin", "snail", "bear",
        "elephant", "donkey")

COLORS = ["red", "blue", "green", "yellow", "pink", "purple", "orange", "white", "black", "brown",
          "gray", "gold", "silver", "dark blue", "light green", "bright red"]

TOYS = ["ball", "doll", "kite", "toy car", "teddy bear", "drum", "toy train", "toy boat", "puzzle",
        "book", "truck", "robot", "top", "bell", "jump rope", "balloon", "whistle", "wagon",
        "toy plane", "toy duck", "toy horse", "crayon", "bucket", "toy dinosaur", "toy bear"]

THINGS = ["hat", "scarf", "cup", "umbrella", "basket", "key", "ring", 
          "pencil", "lamp", "flute", "crown", "cape", "bag", "mirror", "pillow", "coat",
          "blanket", "box", "ribbon", "feather", "watch", "necklace", "fan"]

FRAGILE = [("cup", "on the table"), ("vase", "by the window"), ("plate", "on the shelf"),
           ("bowl", "on the table"), ("lamp", "by the bed"), ("clock", "on the shelf"),
           ("jar", "in the kitchen"), ("pot", "by the door"), ("teapot", "on the table"),
           ("mirror", "by the door")]

SPOTS = ["under the bed", "behind the couch", "in the closet", "under the table", "in the toy box",
         "behind the door", "in the kitchen", "on the shelf", "under the blanket", "in the yard",
         "behind the curtain", "in the big basket", "under the stairs", "behind the chair",
         "in the bath", "under the pillow"]

OUTSIDE = ["behind the shed", "under a bush", "in the garden", "behind the big tree", "by the gate",
           "in the tall grass", "by the pond", "under the bench", "behind the fence",
           "near the swings", "next to the well", "behind the barn", "under the bridge"]

PLACES = ["the park", "the beach", "the forest", "the garden", "the farm", "the river", "the lake",
          "the big hill", "the market", "the meadow", "the playground", "the woods", "the yard",
          "the pond"]
PLAY_PLACES = ["the park", "the playground", "the beach", "the yard", "the garden", "the meadow",
               "the school", "the library", "the pool", "the big hill"]

FOODS = [("an apple", "apple"), ("a banana", "banana"), ("a cookie", "cookie"),
         ("a sandwich", "sandwich"), ("an orange", "orange"), ("a muffin", "muffin"),
         ("a pear", "pear"), ("a cupcake", "cupcake"), ("a pancake", "pancake"),
         ("a peach", "peach"), ("a bun", "bun"), ("a pie", "pie"),
         ("a candy bar", "candy bar"), ("a donut", "donut")]
MANY_FOODS = ["apples", "berries", "cookies", "nuts", "cherries", "plums", "grapes", "carrots",
              "pancakes", "muffins", "strawberries", "buns", "pears"]

TABLES = {
    "trait": ["little", "little", "little", "young", "kind", "happy", "cheerful", "sweet", "nice",
              "funny", "curious", "clever", "smart", "friendly", "gentle", "quiet"],
    "hobby": ["sing", "dance", "draw", "read books", "play outside", "run and jump", "laugh",
              "tell jokes", "look at the clouds", "ask questions", "help people", "play games",
              "hear stories", "count things", "wear boots", "jump in puddles", "pick flowers"],
    "sky": ["sunny", "warm", "bright", "lovely", "beautiful", "cool", "nice", "quiet", "hot"],
    "when": ["One day", "One day", "One <sky> day", "One morning", "One <sky> morning",
             "One afternoon", "One <sky> afternoon"],
    "village": ["village", "town", "house", "house by the sea", "house on a hill",
                "town by the river", "village near the forest", "house with a <color> door"],
    "color": COLORS,
    "food": MANY_FOODS,
    "small": ["small", "little", "tiny", "quiet"],
    "sad": ["sad", "very sad", "so sad", "upset", "very upset", "unhappy"],
    "happy": ["happy", "very happy", "so happy", "glad", "full of joy", "very glad"],
    "scared": ["scared", "very scared", "afraid", "a little scared", "so scared"],
    "proud": ["proud", "very proud", "so proud"],
    "smiled": ["smiled", "smiled a big smile", "laughed", "clapped {his} hands", "jumped for joy",
               "jumped up and down", "danced with joy"],
    "big": ["big", "very big", "huge", "so big"],
    "fine": ["great", "wonderful", "lovely", "good", "fun"],
    "idea": ["had an idea", "had a good idea", "had a great idea", "thought of a plan",
             "thought and thought, and then {he} had an idea"],
    "after": ["After that", "After that day", "From that day on", "From then on"],
    "thanks": ["Thank you, {n}!", "Thank you so much, {n}!", "Thank you! You are very kind.",
               "Oh, thank you, {n}! You are so kind."],
    "goodday": ["It was [a|such a] <fine> day.", "It was the best day ever.",
                "{n} went to bed with a smile that night.",
                "That night, {n} fell asleep with a smile.",
                "{n} would never forget that day.", "{n} had never been so happy.",
                "And {n} was <happy> for the rest of the day."],
    "friends": ["{n} and {n2} were best friends from that day on.",
                "They were best friends from that day on.",
                "<after>, {n} and {n2} played together every day.",
                "<after>, they were the best of friends.",
                "And so {n} and {n2} became good friends.",
                "They laughed and played until the sun went down.",
                "{n} and {n2} were both very happy."],
    "together": ["They laughed and played until the sun went down.",
                 "{n} and {n2} were both very happy.", "They had fun all day long.",
                 "They were so glad to have each other.",
                 "{n} hugged {n2}, and {n2} hugged {n}.", "They smiled all the way home."],
    "home": ["and they all went home happy.", "and they walked home with big smiles.",
             "and then it was time to go home.", "and they went home hand in hand."],
    "hug": ["gave {him} a big hug", "gave {him} a hug", "hugged {him}", "held {his} hand",
            "gave {him} a kiss"],
}

SLOT = re.compile(r"\{(\w+)\}")
TABLE = re.compile(r"<(\w+)>")
CHOICE = re.compile(r"\[([^\[\]]*)\]")
SPEECH = re.compile(r"\(\((\w+)(?:/(\w+))?: ([^()]*)\)\)")
ARTICLE = re.compile(r"\b([Aa]) (?=[aeiouAEIOU])")


PRONOUNS = ("they all",)


def upper(text):
    """The text with a capital first letter."""
    return text[0].upper() + text[1:]


def speech(r, who, verb, quote):
    """One of the usual forms of "quote" said by who."""
    parts = re.match(r"(.+?[.!?]) (.+)$", quote)
    form = r.choice(["before", "after", "after", "split" if parts else "after"])
    said = verb or ("asked" if quote.endswith("?") else "said")
    if form == "before":
        return f'{upper(who)} {said}, "{quote}"'
    rest = ""
    if form == "split":
        quote, last = parts.groups()
        said = verb or ("asked" if quote.endswith("?") else "said")
        rest = f' "{last}"'
    quote = quote[:-1] + "," if quote.endswith(".") else quote
    teller = f"{who} {said}" if who in PRONOUNS else f"{said} {who}"
    return f'"{quote}" {teller}.{rest}'


def expand(r, slots, text):
    """The template's text, with every mark replaced."""
    terse = r.choice([0, 0.3, 0.6, 0.9])

    def choose(match):
        options = match.group(1).split("|")
        return "" if "" in options and r.random() < terse else r.choice(options)

    text = " ".join(text.split())
    while True:
        text, tables = TABLE.subn(lambda m: r.choice(TABLES[m.group(1)]), text)
        text, choices = CHOICE.subn(choose, text)
        if not tables and not choices:
            break

    def slot(match):
        key = match.group(1)
        return slots[key] if key in slots else upper(slots[key[0].lower() + key[1:]])

    text = SLOT.sub(slot, text)
    text = SPEECH.sub(lambda m: speech(r, slots[m.group(1)], m.group(2), m.group(3)), text)
    text = ARTICLE.sub(r"\1n ", text)
    return " ".join(text.split())


def paragraphs(r, text):
    """The text with two to four paragraphs, broken at some of its / marks."""
    parts = [part.strip() for part in text.split("/")]
    parts = [part for part in parts if part]
    most = r.choice([2, 3, 3, 4, 4])
    while len(parts) > most:
        at = r.randrange(1, len(parts))
        parts[at - 1:at + 1] = [parts[at - 1] + " " + parts[at]]
    return "\n".join(parts)


def person(slots, suffix, name, kind, girl):
    """Fills the slots of one character: n2, he2, him2, his2, self2, kid2 for suffix 2."""
    words = ("she", "her", "her", "herself") if girl else ("he", "him", "his", "himself")
    for key, word in zip(("n", "kid", "he", "him", "his", "self"), (name, kind) + words):
        slots[key + suffix] = word


def child(r, slots, suffix=""):
    """A child with a name that no other character of the story has."""
    girl = r.random() < 0.5
    name = r.choice([name for name in (GIRLS if girl else BOYS) if name not in slots.values()])
    person(slots, suffix, name, "girl" if girl else "boy", girl)


def animal(r, slots, suffix="", among=ANIMALS):
    """An animal with a name, of a species that no other character has."""
    species = r.choice([entry for entry in among if entry[0] not in slots.values()])
    name = r.choice([name for name in PETS if name not in slots.values()])
    girl = species[0] in ("cow", "hen") or r.random() < 0.5
    person(slots, suffix, name, species[0], girl)
    for key, word in zip(("sound", "ran", "eats", "den"), species[1:]):
        slots[key + suffix] = word


def grown_up(r, slots):
    """A grown-up of the family: mom, mhe, mhim, mhis, and mama, the name the child calls."""
    word, name, girl = r.choice([
        ("mom", "Mom", True), ("dad", "Dad", False), ("grandma", "Grandma", True),
        ("grandpa", "Grandpa", False), ("mother", "Mommy", True), ("father", "Daddy", False)])
    slots["mom"] = f"{slots['his']} {word}"
    slots["mama"] = name
    slots["mhe"], slots["mhim"], slots["mhis"] = (
        ("she", "her", "her") if girl else ("he", "him", "his"))


def friend(r, slots):
    """A second child, and who it is to the first: a friend, a sister, a cousin."""
    child(r, slots, "2")
    kin = "sister" if slots["kid2"] == "girl" else "brother"
    slots["friend"] = r.choice(["friend", "best friend", "good friend", kin, "little " + kin,
                                "big " + kin,
                                "cousin"])


def opening(r, slots, act, when="<when>", hobby=True):
    """The first sentences, then the act, a clause about {S}."""
    who = f"a <trait> {slots['kid']} named {{n}}"
    lived = f" {{He}} lived {slots['den']}." if "den" in slots and r.random() < 0.5 else ""
    if hobby and not lived and r.random() < 0.5:
        lived = r.choice([" {He} loved to <hobby>.", " {He} liked to <hobby>."])
    start = r.choice([
        f"Once upon a time, there was {who}.",
        f"Once upon a time, there was {who}.",
        f"There was {who}." if r.random() < 0.5 else f"There once was {who}.",
        f"In a <small> <village>, there lived {who}." if "den" not in slots else
        f"Once there was {who}.",
        f"{{n}} was a <trait> {slots['kid']}.",
        "",
    ])
    if start or "den" in slots:
        start = start or f"Once upon a time, there was {who}."
        subject = r.choice(["{he}", "{n}"])
        return f"{start}{lived} {when}, " + act.replace("{S}", subject)
    return f"{when}, " + act.replace("{S}", "{n}")


def pair(slots):
    """Slot both: the names of the two characters."""
    slots["both"] = f"{slots['n']} and {slots['n2']}"


def colored(r, slots, words, suffix=""):
    """Slots col and toy: a colored thing, unlike any other of the story."""
    slots["toy" + suffix] = r.choice([word for word in words if word not in slots.values()])
    slots["col" + suffix] = r.choice([word for word in COLORS if word not in slots.values()])
    slots["thing" + suffix] = f"{slots['col' + suffix]} {slots['toy' + suffix]}"


# ------------------------------------------------------------------------------------------------
# Plots
# ------------------------------------------------------------------------------------------------

def lost_toy(r, s):
    child(r, s)
    grown_up(r, s)
    colored(r, s, TOYS + ["hat", "scarf", "blanket", "flute"])
    s["spot1"], s["spot2"], s["spot3"] = r.sample(SPOTS, 3)
    return opening(r, s, "[{S} could not find {his} {thing}|{S} wanted to play with {his} "
                   "{thing}, but it was gone|{S} lost {his} {thing}]. [{He} loved that "
                   "{toy} very much.|It was {his} favorite {toy}.|{N} felt <sad>.]",
                   hobby=False) + """
        / [{N}|{He}] looked {spot1}. [It was not there.|The {toy} was not there.|No {toy}!] {He}
        looked {spot2}. It was not there. [((n: Where is my {thing}?))|((n: Oh no! I lost my
        {toy}!))] [A tear ran down {his} cheek.|{He} began to cry.|]
        / [{Mom} heard {him} and came to help.|{Mom} saw that {he} was <sad>.]
        / [((mom: Do not cry. We will find it together.))|((mom: Let us look together.))|((mom: Do
        not worry, {n}. I will help you.))]
        / [They looked and looked.|They looked up and down.|]
        / Then {n} looked {spot3}. [There it was!|There was the {thing}!]
        / [((n/cried: I found it! I found my {toy}!))|((n/cried: Here it is!))|]
        / {N} hugged {his} {thing} and <smiled>. [((n: Thank you, {mama}.))|((n: Thank you for
        helping me, {mama}!))]
        / [From that day on, {n} always put the {toy} back in its place.|That night, {n} put the
        {thing} next to {his} bed.|{N} never lost the {toy} again.|<goodday>]"""


def shared_food(r, s):
    child(r, s)
    child(r, s, "2")
    s["afood"], s["food"] = r.choice(FOODS)
    s["place"] = r.choice(PLAY_PLACES)
    return opening(r, s, "{S} [went to {place} with {afood}|took {afood} to {place}|sat down "
                   "at {place} to eat {afood}]. [The {food} was <big> and it smelled "
                   "good.|{He} was very hungry.|It was {his} favorite food.]") + """
        / [Then {n} saw {n2}.|There {he} saw a {kid2} named {n2}.|A {kid2} named {n2} sat next to
        {him}.] {N2} [looked <sad>|had no food|was sad and hungry].
        / ((n: [Why are you sad|What is wrong], {n2}?))
        / [((n2: I am hungry. I [forgot|lost|dropped] my lunch.))|((n2: I have nothing to eat.))]
        {N} looked at {his} {food}. [{He} wanted to eat it all, but {he} was kind.|It was only one
        {food}, but {n} knew what to do.|{He} <idea>.]
        / {He} [broke|cut] the {food} into two parts. [One for {n}, and one for {n2}.|]
        / [((n: Here you are. We can share.))|((n: One part is for you, and one part is for me.))]
        {N2} took a bite and smiled. ((n2: [<thanks>|This is the best {food} ever!]))
        / [They ate the {food} together.|They sat in the sun and ate.] [<friends>|{N} learned that
        food tastes better when you share it.|The {food} was small, but their hearts were full.]"""


def afraid_of_dark(r, s):
    child(r, s)
    grown_up(r, s)
    colored(r, s, ["lamp", "teddy bear", "blanket", "night light", "toy rabbit", "pillow"])
    return opening(r, s, "it was time for bed. [The sun was gone, and the|The] room was dark. "
                   "{N} was <scared>.", when="[One night|One cold night|One quiet night]") + """
        / [((n/called: {Mama}! {Mama}!))|((n: I do not like the dark.))|((n/called: {Mama}, please
        come!))]
        / {Mom} came in and sat on the bed. ((mom: What is wrong, {n}?))
        / ((n: [The dark is big and I am small.|I am afraid of the dark.|I see a monster by the
        door!]))
        / {Mom} [smiled|did not laugh]. {Mhe} [gave {him} a {thing}|took out a {thing}].
        / ((mom: [This {toy} will keep you safe.|Hold this {toy}, and you will not be afraid.|The
        dark is just the day with its eyes closed. This {toy} will stay with you.])) {N} [held the
        {thing}|looked at the {thing}] and [listened|took a deep breath]. [It was quiet.|The moon
        was at the window.|{He} saw a star, and the star was pretty.]
        / [The monster was only a coat!|There was no monster at all.|The dark was not so bad.] [((n:
        Good night, {mama}.))|((n: I am brave now.))|((n: Good night, dark.))]
        / [{N} closed {his} eyes and went to sleep.|Soon {n} was asleep.]
        / [<after>, {n} was not afraid of the dark.|{He} slept all night with the {thing} next to
        {him}.|And {he} dreamed of nice things.]"""


def hurt_animal(r, s):
    child(r, s)
    grown_up(r, s)
    s["a"], s["part"], s["ran"], s["eats"] = r.choice([
        ("bird", "wing", "flew", "seeds"), ("duck", "foot", "swam", "bread"),
        ("rabbit", "leg", "hopped", "carrots"), ("puppy", "paw", "ran", "meat"),
        ("kitten", "paw", "ran", "fish"), ("squirrel", "tail", "jumped", "nuts"),
        ("mouse", "leg", "ran", "cheese"), ("hedgehog", "foot", "walked", "apples"),
        ("lamb", "leg", "ran", "grass"), ("owl", "wing", "flew", "seeds")])
    s["col"] = r.choice(["brown", "white", "gray", "black", "little", "tiny"])
    s["place"] = r.choice(PLACES)
    return opening(r, s, "{S} [was walking near {place}|went to {place}|was playing near "
                   "{place}]. {He} [saw|found] a {col} {a} under a [tree|bush].") + """
        / The {a} [did not move|could not move|looked <sad>]. Its {part} was hurt.
        / [((n: Oh, poor {a}! I will help you.))|((n: Do not be afraid, little {a}.))|((n: What is
        wrong, little {a}?))]
        / [{N} picked it up with gentle hands.|{He} put {his} coat around the {a}.|{He} held the {a}
        in {his} arms.] {He} took it home to {mom}.
        / [((n: {Mama}, can we help this {a}?))|((n: Look, {mama}! This {a} has a hurt {part}. Can
        we help it?))] [((mom: Yes, we can.))|((mom: Of course we can, {n}.))] They put a
        [soft|clean|white] cloth on its {part}. {N} gave it water and {eats}. [Every day, the {a}
        got better.|Day by day, the {a} got stronger.|{He} sat with the {a} every day.]
        / [At last|Then one day|One week later], the {part} was well. The {a} {ran} [away to its
        family|back to its home|in a circle around {n}]. {N} [was a little sad, but {he} was happy
        too|waved and smiled]. [((n/called: Goodbye, little {a}!))|]
        / [Now the {a} comes back to see {n} every day.|It feels good to help someone who is
        small.|The {a} never forgot the kind {kid}.|{N} was <proud> of what {he} had done.]"""


def bake(r, s):
    child(r, s)
    grown_up(r, s)
    s["cake"] = r.choice(["cake", "pie", "loaf of bread", "apple pie", "chocolate cake",
                          "berry pie", "birthday cake", "carrot cake"])
    s["last"] = s["cake"].split()[-1] if s["cake"] != "loaf of bread" else "bread"
    s["miss1"], s["miss2"] = r.sample(["eggs", "milk", "sugar", "butter", "flour"], 2)
    s["near"] = r.choice(["Mrs. Hill", "Mr. Brown", "Mrs. Lee", "Mr. Green", "Mrs. Bell"])
    return opening(r, s, "{S} wanted to [bake|make] a {cake}. [It was for {mom}.|{He} had "
                   "never made a {cake} before.|{He} put on a <color> apron.]") + """
        / ((n: [Can we make a {cake}|Will you help me make a {cake}], {mama}?))
        / [((mom: Yes! First we need {miss1} and {miss2}.))|((mom: Yes, but we need {miss1} and
        {miss2}.))] [{N} looked in the kitchen.|[{He} opened the door of the cupboard.|]] {He} found
        some {miss1}, but {he} could not find any {miss2}.
        / [((n: Oh no! No {miss2}!))|((n: What can we do?))|{N} felt <sad>.]
        / {N} <idea>. {He} went next door to {near}. ((n: May I please have some {miss2}?)) ((near:
        [Yes, {n}.|Of course you may.|Here you are, {n}.]))
        / {N} ran home with the {miss2}. [They mixed and mixed.|] [They put in the {miss1} and the
        {miss2}.|] Soon the {last} was in the oven, and the house smelled [sweet|so good|yummy].
        When it was done, {n} [took a big piece to {near}|gave the first piece to {near}|cut it and
        took some to {near}]. [((near: This {last} is so good!))|((near: Yum! Thank you, {n}!))]
        [They all ate {last} and laughed.|It was the best {last} in the town.|{N} learned that good
        things are made with the help of friends.|<goodday>]"""


def rain_picnic(r, s):
    child(r, s)
    friend(r, s)
    pair(s)
    s["food1"], s["food2"] = r.sample(MANY_FOODS, 2)
    s["place"] = r.choice(["the park", "the beach", "the meadow", "the lake", "the big hill",
                           "the river", "the forest"])
    s["c1"], s["c2"], s["c3"] = r.choice([
        ("red", "yellow", "blue"), ("red", "green", "purple"), ("orange", "green", "blue"),
        ("yellow", "green", "purple")])
    return opening(r, s, "{S} and {his} {friend} {n2} [went to {place} for a picnic|had a "
                   "picnic near {place}]. They had a basket with {food1} and {food2}.") + """
        / [They put a <color> blanket on the ground.|They sat down on a <color> blanket.]
        / [Just then|But then|Then] a [big|dark|gray] cloud came. Drip, drop! It began to rain.
        [((n2/cried: Oh no! Our picnic!))|((n2/cried: Oh no! We are getting wet!))] [They were
        <sad>.|{N2} was <sad>.|The {food1} got wet.]
        / [((n: Quick! Let us sit under that tree.))|((n/shouted: Run! Run to the big tree!))] They
        took the basket and ran under a big tree. [They ate the {food1} and the {food2} there.|]
        [They told funny stories.|They sang a song to the rain.|They counted the drops of rain.]
        [Soon|After a while|At last], the rain stopped and the sun came out. ((n: Look up, {n2}!))
        There was a rainbow in the sky! It was {c1} and {c2} and {c3}.
        / [((n2: It is so pretty!))|((n2: Wow! I see {c1} and {c2} and {c3}!))|]
        / [((n: If it did not rain, we would not see the rainbow.))|]
        / [They were glad that it had rained.|It was the best picnic ever.|{both} jumped in the
        puddles, <home>|They ate the last of the {food1}, <home>]"""


def new_friend(r, s):
    child(r, s)
    child(r, s, "2")
    colored(r, s, [toy for toy in TOYS if toy not in ("crayon", "book", "puzzle", "bell")])
    s["the2"] = "the " + s["kid2"]
    s["place"] = r.choice(["the park", "the playground", "the beach", "the school", "the garden"])
    return opening(r, s, "{S} went to {place}. {He} [had no one to play with|was new in town "
                   "and had no friends|wanted to find a friend]. [{He} sat all alone.|]") + """
        / [Then {he} saw a {kid2} with a {thing}.|A {kid2} came by with a {thing}.|There was a
        {kid2} playing with a {thing}.]
        / [{N} was shy.|{N} wanted to say hello, but {he} was shy.|{N}'s heart went thump, thump.]
        [{He} took a deep breath.|{He} took one step, and then one more step.|]
        / ((n: Hello. [My name is {n}.|I am {n}.] [I like your {toy}.|What is your name?])) The
        {kid2} smiled. ((the2: Hi! [My name is {n2}.|I am {n2}.] [Do you want to play|Will you play]
        with me?))
        / ((n: [Yes, please!|Yes, I do!|I would love to!])) They played with the {thing} [all
        day|all morning|for a long time]. [Then they went on the swings, up and down, up and
        down.|Then they ran around the big tree.|Then they lay in the grass and looked at the
        clouds.] [((n2: You are fun, {n}.))|((n2: Can you come back tomorrow?))|((n: I am glad I
        said hello.))] [{N} was not alone any more.|{N} was <happy>.|Now {n} had a friend.]
        [<friends>|All it took was one small hello.]"""


def learn(r, s):
    child(r, s)
    grown_up(r, s)
    s["skill"], s["fail"], s["did"], s["where"] = r.choice([
        ("ride a bike", "fell off", "rode the bike", "on the path"),
        ("swim", "went under the water", "swam", "in the pool"),
        ("tie {his} shoes", "made a big knot", "tied {his} shoes", "on the steps"),
        ("skate", "fell on the ice", "skated", "on the pond"),
        ("whistle", "only blew air", "whistled", "in the yard"),
        ("jump rope", "tripped on the rope", "jumped", "in the yard"),
        ("fly a kite", "let it fall to the ground", "flew the kite", "on the hill"),
        ("climb the rope", "slid down", "climbed the rope", "in the park"),
        ("catch a ball", "dropped the ball", "caught the ball", "in the park"),
        ("write {his} name", "made a mess", "wrote {his} name", "at the table")])
    s["skill2"] = s["skill"].replace("{his}", "my")
    s["skill"], s["did"] = (s[key].replace("{his}", s["his"]) for key in ("skill", "did"))
    return opening(r, s, "{S} wanted to learn to {skill}. [All {his} friends could do it.|{He} "
                   "saw a big {kid} do it, and it looked fun.|{N} could not do it yet.]") + """
        / {N} tried {where}. {He} {fail}. {He} tried again. {He} {fail} again.
        / [((n: It is too hard! I can not {skill2}.))|((n: I will never learn to {skill2}.))|((n: I
        can not do it!))] [{He} wanted to stop.|{He} felt <sad>.|{He} was a little angry.] {Mom}
        [sat down next to {him}|came to {him}|<hug>].
        / [((mom: I could not {skill2} at first. I had to try many times.))|((mom: Try one more
        time. I will be right here.))|((mom: Do not give up, {n}. Go slow.))]
        / So {n} tried one time, two times, three times. [{He} went slow.|{Mom} helped {him} a
        little.|"I can do it, I can do it," {he} said.] And then {he} {did}!
        / [((n/shouted: I did it! Look at me, {mama}!))|((n/shouted: Look! I can {skill2}!))] [{Mom}
        clapped.|((mom: I am so proud of you!))|((mom: I knew you could do it!))] [{N} {did} all
        day.|<goodday>|If you try and try again, you will learn.|{N} learned that it is good to keep
        trying.]"""


def broke(r, s):
    child(r, s)
    grown_up(r, s)
    s["toy"], s["at"] = r.choice(FRAGILE)
    s["col"] = r.choice(COLORS)
    return opening(r, s, "{S} [was playing with a ball in the house|was running in the "
                   "house|was jumping and dancing in the house]. {Mom} had a {col} {toy} "
                   "{at}.",
                   when="[One day|One rainy day|One morning|One afternoon]", hobby=False) + """
        / [Bump! Crash!|Oh no! Crash!|Crash!] The {col} {toy} fell down and broke. [There were
        little pieces on the floor.|It was in many pieces.|]
        / {N} was <scared>. [((n: What will I do now?))|{He} wanted to hide.|{He} put the pieces
        under a blanket.|((n: Maybe no one will know.))]
        / [Soon|Then|After a while], {mom} came in. ((mom: Where is my {col} {toy}?))
        / [{N} wanted to say that the cat did it.|{N} looked at {his} feet.|{N}'s face was red.] But
        {he} [knew it was good to tell the truth|did not want to tell a lie|was a good {kid}]. ((n:
        [I broke it. I am sorry, {mama}.|I am so sorry. I broke your {toy}.]))
        / {Mom} was [quiet|sad for a moment]. Then {mhe} <hug>.
        / [((mom: Thank you for telling me the truth.))|((mom: I am sad about the {toy}, but I am
        glad that you told me the truth.))|((mom: A {toy} is just a {toy}. The truth is better.))]
        [They picked up the pieces and fixed the {col} {toy} with glue.|They cleaned up the pieces
        together.] [{N} felt much better.|{N} promised to play outside.|]
        / [It is always best to tell the truth.|{N} learned that the truth makes your heart feel
        light.|<after>, {n} always told the truth.]"""


def proud_animal(r, s):
    animal(r, s)
    s["tiny"] = r.choice([a for a in ("ant", "mouse", "snail", "bee", "frog", "bug", "worm")
                          if a != s["kid"]])
    s["thetiny"] = "the little " + s["tiny"]
    s["thistiny"] = "the " + s["tiny"]
    s["best"], s["trouble"], s["help"] = r.choice([
        ("the fastest {kid} of all", "ran into a net and could not get out",
         "made a hole in the net"),
        ("the strongest {kid} of all", "fell into a deep hole", "called for help and found a rope"),
        ("the smartest {kid} of all", "got lost in the dark", "knew the way home"),
        ("the most beautiful {kid} of all", "got stuck in the mud", "showed {him} a way out"),
        ("the biggest {kid} of all", "got a thorn in {his} foot", "took the thorn out")])
    for key in ("best", "help", "trouble"):
        s[key] = s[key].replace("{kid}", s["kid"]).replace("{his}", s["his"]).replace(
            "{him}", s["him"])
    return """[Once upon a time, there was|There once was|Once there was|There was] a proud {kid}
        named {n}. {He} lived {den}. [Every day,|Each morning,] {n} said, "I am {best}!" [The other
        animals did not like to hear it.|The other animals were tired of it.|] <when>, a {tiny} came
        by. [((thistiny: Hello, {n}. Can I play with you?))|((thistiny: Good morning, {n}. May I sit
        here?))]
        / [((n: No! You are too small. I am {best}!))|((n: Go away, little {tiny}. I am {best}!))]
        The {tiny} went away and was <sad>.
        / [Later that day|The next day|That night], {n} {trouble}. ((n/cried: Help! Help!)) [No one
        came.|The other animals did not hear.|] But the {tiny} heard {him}. The little {tiny}
        {help}. [Soon {n} was safe.|Now {n} was safe.] ((n: Thank you, {tiny}. [I am sorry I was not
        nice.|I was wrong.|You are small, but you are a big help.]))
        / [((thetiny: Even the small can help the big.))|((thetiny: Now can we play?))|]
        / [<after>, {n} was kind to everyone, big and small.|{N} never said that {he} was the best
        again.|{N} and the {tiny} were friends from that day on.|{N} learned that it is better to be
        kind than to be proud.]"""


def race(r, s):
    animal(r, s, "", [a for a in ANIMALS if a[0] in FAST])
    animal(r, s, "2", [a for a in ANIMALS if a[0] in SLOW])
    s["owl"] = "the old owl"
    s["all"] = "the animals"
    s["goal"] = r.choice(["the big tree", "the river", "the old bridge", "the top of the hill",
                          "the red barn", "the big rock"])
    return opening(r, s, "{S} met {n2} the {kid2}. ((n: I am faster than you, {n2}.))",
                   hobby=False) + """
        / [((n2: Are you? Let us have a race.))|((n2: Then let us race to {goal}.))] [All the
        animals came to see the race.|The other animals came to look.] They had to run to {goal}.
        ((owl: One, two, three, go!))
        / {N} was fast, and {n2} was slow. [Soon {n} was far ahead.|Soon {n} could not see {n2} any
        more.] [((n: I have time to rest.))|((n: This is too easy. I will eat {eats} first.))] So
        {n} [sat down under a tree|lay down in the grass] and fell asleep.
        / But {n2} did not stop. [Step by step, step by step, {he2} went on.|{He2} went on and
        on.|{He2} was tired, but {he2} went on.] When {n} woke up, {n2} was at {goal}!
        / ((all/cried: {N2} wins! {N2} wins!)) [{N} was <sad>.|{N} could not believe it.] [[((n: You
        won, {n2}. Good job.))|((n: I will not sleep next time.))]|]
        / [{N2} was kind and gave {n} a hug.|{N2} smiled and they ate {eats} together.|]
        / [If you do not stop, you will get there in the end.|Slow and steady wins the race.|{N}
        learned not to be so proud.|They were good friends from then on.]"""


def seed(r, s):
    child(r, s)
    grown_up(r, s)
    s["plant"] = r.choice(["sunflower", "rose", "bean plant", "pumpkin", "carrot", "apple tree",
                           "tulip", "strawberry plant", "tomato plant", "daisy", "cherry tree"])
    s["col"] = r.choice(["red", "blue", "green", "yellow", "pink", "purple", "orange", "white"])
    return opening(r, s, "{S} found a [tiny|little|small] seed in [the garden|a box|{his} "
                   "pocket|the kitchen]. ((n: What is this?))") + """
        / ((mom: It is a seed. [If you plant it, it will grow.|Put it in the ground and you will
        see.])) {N} [put the seed in a {col} pot|dug a hole and put the seed in a {col} pot]. {He}
        gave it water. [[((n: Grow, little seed, grow.))|((n: Please grow, little seed.))]|]
        / The next day, {n} looked at the {col} pot. There was nothing. The day after that, {he}
        looked again. There was nothing. {N} was <sad>. [((n: My seed does not like me.))|((n: Why
        does it not grow?))|]
        / ((mom: [You must wait. Good things take time.|Wait a little more, {n}.|Seeds are slow.
        Give it sun and water.]))
        / [So {n} gave it water every day. [{He} sang to it, too.|{He} put it in the sun.|"Grow,
        little seed, grow," {he} said.]|] Then one morning there was a little green leaf in the
        {col} pot! [It grew and grew.|] [In the summer|At last|After many days], it was a
        [big|tall|beautiful] {plant}. [((n/cried: Look, {mama}! It is a {plant}!))|((n/shouted: My
        seed is a {plant} now!))] [{N} was <proud> of the {plant}.|{N} learned that good things take
        time.|<after>, {n} loved to plant seeds.|Everyone came to look at it.]"""


def missing_pet(r, s):
    child(r, s)
    s["pet"], s["sound"], s["eats"] = r.choice([
        ("cat", "meow", "fish"), ("dog", "woof", "bones"), ("puppy", "yip", "meat"),
        ("kitten", "mew", "milk"), ("duck", "quack", "bread"), ("goat", "maa", "grass"),
        ("hen", "cluck", "corn"), ("lamb", "baa", "grass"), ("pony", "neigh", "apples"),
        ("parrot", "squawk", "nuts")])
    s["n2"] = r.choice([name for name in PETS if name not in s.values()])
    s["col"] = r.choice(["black", "white", "brown", "gray", "orange", "yellow"])
    s["spot3"] = r.choice([spot for spot in OUTSIDE if spot.split()[0] in ("behind", "under")])
    s["spot1"], s["spot2"] = r.sample([spot for spot in OUTSIDE if spot != s["spot3"]], 2)
    return opening(r, s, "{S} could not find {n2}. {N2} was {his} {col} {pet}. [{N} loved {n2} "
                   "very much.|{N2} liked to eat {eats}.|]", hobby=False) + """
        / ((n/called: {N2}! {N2}! Where are you?)) {He} looked {spot1}. {N2} was not there. {He}
        looked {spot2}. {N2} was not there. [{N} began to cry.|{N} felt <sad>.|It was getting dark,
        and {n} was <scared>.]
        / [Then {n} <idea>. {He} got some {eats} and sat down to wait.|{N} sat down and was very
        quiet. {He} listened.|A kind man said, "I saw a {col} {pet} go that way." {N} ran and ran.]
        "{Sound}!" [What was that?|{N} heard something.] "{Sound}!" It came from {spot3}.
        / [{N} looked {spot3}, and there was {n2}!|{N} ran to look. There was {n2}!]
        / [{N2} had two little babies.|{N2} was cold and wet.|{N2} was stuck, but {n} helped.|{N2}
        was playing with a leaf.]
        / [((n/cried: I found you!))|((n: Oh, {n2}! I missed you so much.))] {N} hugged the {col}
        {pet}. "{Sound}," said {n2}. [They went home, and {n2} ate a lot of {eats}.|That night, {n2}
        slept on {n}'s bed.|{N} gave {n2} some {eats}.]
        / [{N} was <happy> to have {n2} back.|<after>, {n2} never ran away again.|They were both
        happy to be home.]"""


def tower(r, s):
    child(r, s)
    friend(r, s)
    pair(s)
    s["c1"], s["c2"], s["c3"] = r.sample([color for color in COLORS if " " not in color], 3)
    s["build"] = r.choice(["tower", "castle", "house", "tower", "barn"])
    return opening(r, s, "{S} wanted to build a [big|tall] {build} with blocks. {He} put a "
                   "{c1} block on the floor. Then {he} put a {c2} block on the {c1} "
                   "block.") + """
        / [((n: My {build} will be so tall!))|((n: This will be the best {build} ever.))|] {N} put a
        {c3} block on top. [But the {build} was too tall.|The {build} went this way and that way.]
        Crash! It fell down.
        / [((n/cried: Oh no! My {build}!))|{N} felt <sad>.|{N} was angry and kicked a block.] {His}
        {friend} {n2} came in. ((n2: [Can I help?|Let us build it together.|I can help you, {n}.]))
        [At first {n} said no, but then {he} said yes.|((n: Yes, please.))]
        / {n2} [held the blocks|put the big blocks at the bottom]. {N} put the [small|other] blocks
        on top. A {c1} block, a {c2} block, a {c3} block. A {c1} block, a {c2} block, a {c3} block.
        Up and up it went! [This time, it did not fall.|It was as tall as the chair.|It was very
        tall.] [((n: We did it, {n2}!))|((n2: It is the tallest {build} in the world!))] [It is more
        fun to build with a friend.|{both} were <proud> of the {build}.|They clapped and danced
        around the {build}.|Two can do more than one.]"""


def sick_friend(r, s):
    child(r, s)
    child(r, s, "2")
    grown_up(r, s)
    s["food"] = r.choice(["soup", "a cake", "a pie", "some cookies", "some pancakes",
                          "some muffins", "some tea"])
    s["food2"] = s["food"].removeprefix("a ").removeprefix("some ")
    colored(r, s, ["flower", "balloon", "card", "teddy bear", "book", "kite", "hat", "scarf"])
    return opening(r, s, "{S} went to [play with|see] {his} friend {n2}. But {n2} was sick in "
                   "bed. [{N2}'s nose was red.|{N2} could not play.|{N2} had to stay in "
                   "bed all day.]") + """
        / [((n2: I feel bad. I can not come out.))|((n2: I am so sad. I want to play.))] {N} was
        <sad> [too|for {his} friend]. [((n: What can I do for {n2}?))|((n: I want to make {n2} feel
        better.))]
        / {N} <idea>. {He} ran home. [{He} asked {mom} to help.|{Mom} helped {him}.] They made
        {food}. Then {n} [got|found|made] a {thing}. {He} took the {food2} and the {thing} to {n2}.
        [((n: This is for you.))|((n: I have {food} and a {toy} for you.))] {N2} sat up and
        [smiled|laughed]. ((n2: [A {thing}!|Oh, {n}!] [Thank you.|You are so nice.|You are a good
        friend.])) [{N} told {him2} a story.|{N} read {him2} a book.|They sang a little song.] [The
        next day|Two days later|Soon], {n2} was well. [They ran outside to play.|{N2} came to {n}'s
        house to play.] [((n2: You made me feel better, {n}.))|]
        / [A good friend is the best medicine.|<friends>|Kind friends make us feel better.]"""


def noise(r, s):
    child(r, s)
    grown_up(r, s)
    s["sound"], s["was"] = r.choice([
        ("tap, tap, tap", "a branch at the window"), ("scratch, scratch", "the cat at the door"),
        ("drip, drip, drip", "water in the sink"), ("squeak, squeak",
        "a tiny mouse with some cheese"),
        ("bump, bump", "the dog with its ball"), ("hoot, hoot", "an owl in the tree"),
        ("creak, creak", "the old gate in the wind"), ("thump, thump", "a rabbit in the garden"),
        ("crunch, crunch", "a hedgehog in the leaves"), ("buzz, buzz", "a bee in a jar")])
    s["sound"] = upper(s["sound"])
    return opening(r, s, "{S} was in bed. [The house was dark and quiet.|It was late.|The moon "
                   "was in the sky.] Then {he} heard a noise. {sound}!",
                   when="[One night|One dark night|One windy night]") + """
        / [((n: What is that?))|((n: Who is there?))] No one said a thing. {Sound}! There it was
        again. [{N} was <scared>.|{N} hid under the blanket.|{N}'s heart went fast.]
        / [((n: Is it a monster?))|((n: It must be a big bad monster.))|]
        / {N} ran to {mom}. [((n: {Mama}, there is a monster!))|((n: {Mama}, I heard a noise.))]
        ((mom: [Let us go and look.|Let us see what it is.|Take my hand, and we will look.])) They
        took a [light|lamp]. {Sound}! They went on quiet feet, step by step. [{N} held on tight.|{N}
        wanted to run, but {he} was brave.] They looked, and what did they see? It was only {was}!
        [{N} laughed and laughed.|((n: It is not a monster at all!))|((mom: There is your monster,
        {n}.))] [Then {mom} took {him} back to bed.|{N} went back to bed.] {Sound}! [Now {n} knew
        what it was, and {he} was not afraid.|{N} smiled in the dark and went to sleep.|It was a
        nice noise now, and {n} fell asleep.]"""


def too_high(r, s):
    child(r, s)
    friend(r, s)
    s["want"], s["at"] = r.choice([
        ("apple", "in the tree"), ("pear", "in the tree"), ("cookie jar", "on the top shelf"),
        ("book", "on the top shelf"), ("kite", "in the tree"), ("ball", "on the roof"),
        ("balloon", "in the tree"), ("hat", "on the wall"), ("doll", "on the top shelf"),
        ("toy plane", "on the roof"), ("peach", "in the tree"), ("robot", "on the top shelf"),
        ("drum", "on top of the closet"), ("teddy bear", "on top of the closet")])
    s["col"] = r.choice([color for color in COLORS if " " not in color])
    s["it"] = s["want"]
    return opening(r, s, "{S} saw a {col} {want} {at}. {He} wanted [it|the {col} {want}] very "
                   "much. But it was too high.") + """
        / {N} jumped. {He} could not get it. [{He} jumped again, as high as {he} could. {He} could
        not get it.|] [{He} got a box and stood on the box, but it was still too high.|{He} got a
        long stick, but the stick was too short.|] [((n: I am too small.))|((n: It is not fair. It
        is too high!))]
        / {His} {friend} {n2} came by. ((n2: What do you want, {n}?)) ((n: I want the {col} {want}
        {at}.)) [{N2} tried, but {he2} could not get it. [((n2: I am too small, too.))|]|]
        / [[Then they had an idea.|They thought and thought.]|] ((n2: [I have an idea.|I know!] [You
        can stand on my back.|If I lift you up, you can get it.]))
        / {N2} [held {n} up|stood still like a rock]. [Up, up, up went {n}.|] {N} [reached out {his}
        hand|stretched {his} arms] and got the {col} {want}! [((n/shouted: We got it!))|((n/cried: I
        have it! I have the {want}!))]
        / [((n: I could not do it without you, {n2}.))|((n: Let us share it, {n2}.))] [They shared
        the {col} {want} and had fun.|<together>|Alone they were too small, but together they were
        tall.|When friends work together, nothing is too high.]"""


def trip(r, s):
    child(r, s)
    grown_up(r, s)
    place, sights = r.choice([
        ("beach", ["a crab", "a big blue wave", "a white bird", "a pink shell", "a red boat"]),
        ("farm", ["a brown cow", "a pink pig", "a fat hen", "a white sheep", "a fast horse",
                  "a baby duck"]),
        ("zoo", ["a big lion", "a tall giraffe", "a funny monkey", "a gray elephant",
                 "a black bear", "a little penguin", "a green snake", "a striped zebra"]),
        ("forest", ["a tall tower", "a brown deer", "a gray owl", "a red fox", "a fast squirrel",
                    "a green frog"]),
        ("lake", ["a white duck", "a green frog", "a silver fish", "a slow turtle",
                  "a small boat"])])
    s["place"] = place
    sights = r.sample(sights, 3)
    s["s1"], s["s2"], s["s3"] = sights
    s["bare"] = sights[2].split()[-1]
    s["go"] = r.choice(["by bus", "by car", "by train", "on foot", "on their bikes"])
    return opening(r, s, "{S} and {mom} went to the {place}. [They went {go}.|] [{N} could not "
                   "wait to get there.|((n: Are we there yet?)) ((mom: Not yet.))|It was "
                   "a long way.]") + """
        / At the {place}, {n} saw {s1}. [((n: Look, {mama}! I see {s1}!))|((n/cried: Wow! Look at
        that!))] Then {he} saw {s2}. [{He} clapped {his} hands.|{He} had never seen one before.|]
        ((mom: What do you want to see now?)) ((n: I want to see {s3}.)) They looked and looked, but
        they could not see {s3}. [{N} was <sad>.|((n: Where is it?))|]
        / [[Then they sat down to eat <food>.|They stopped to eat <food>.]|] [Just then|All of a
        sudden], {n} looked up. There was {s3}! [It was [right there|very close|just in front of
        them].|] [((n/shouted: {Mama}, I see the {bare}!))|((n: Hello, {bare}!))|]
        / In the evening they went home[ {go}|]. [((mom: What did you like best?)) ((n: I liked the
        {bare} best.))|{N} was tired but <happy>.] {N} [dreamed of|drew a picture of] {s1}, {s2} and
        {s3}. [It was a <fine> day at the {place}.|{He} wanted to go to the {place} again.|It was
        the best trip ever.]"""


def trade(r, s):
    child(r, s)
    child(r, s, "2")
    pair(s)
    colored(r, s, TOYS)
    colored(r, s, TOYS, "2")
    return opening(r, s, "{S} was playing with {his} {thing}. {He} saw {n2}. {N2} had a "
                   "{thing2}.") + """
        / [[{N} liked the {thing2}.|{N} looked at the {thing2} and wanted it.]|] [((n: Your {toy2}
        is so nice.))|((n: I like your {thing2}.))] [((n2: And I like your {thing}.))|]
        / [((n: Do you want to trade?))|((n: Can we trade for one day?))] ((n2: Yes! [You take my
        {toy2}, and I take your {toy}.|That is a good idea.])) So {n} gave {n2} the {thing}, and
        {n2} gave {n} the {thing2}. [They were both happy.|They played and played.|]
        / But [that night|after a while], {n} [missed {his} {thing}|thought of {his} {thing}]. [The
        {toy2} was nice, but it was not {his} {toy}.|{He} felt <sad>.] [And {n2} missed {his2}
        {thing2}, too.|]
        / [The next day|In the morning], they met again. [((n: I miss my {toy}.)) ((n2: I miss my
        {toy2}, too.))|((n2: May I have my {toy2} back?)) ((n: Yes, and may I have my {toy}?))] So
        they traded back. [{N} hugged the {thing}, and {n2} hugged the {thing2}.|] [((n: Let us play
        with both!)) And that is what they did.|They played with both until dark. It was more fun to
        share.|<friends>|Each one had the best toy of all.]"""


def counting(r, s):
    child(r, s)
    s["many"], s["one"], s["where"], s["away"] = r.choice([
        ("ducks", "duck", "on the pond", "behind a rock"),
        ("eggs", "egg", "in the nest", "under a leaf"),
        ("frogs", "frog", "by the pond", "under a leaf"),
        ("birds", "bird", "in the tree", "behind a leaf"),
        ("apples", "apple", "in the basket", "under the cloth"),
        ("stars", "star", "in the sky", "behind a cloud"),
        ("shells", "shell", "on the sand", "under the sand"),
        ("flowers", "flower", "in the garden", "behind a bush"),
        ("sheep", "sheep", "on the hill", "behind a tree"),
        ("buttons", "button", "in the box", "under the lid"),
        ("chicks", "chick", "in the barn", "under the hen"),
        ("kittens", "kitten", "in the box", "under the blanket"),
        ("boats", "boat", "on the lake", "behind the island"),
        ("cookies", "cookie", "on the plate", "under a big one"),
        ("fish", "fish", "in the pond", "behind a stone")])
    grown_up(r, s)
    numbers = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
    last = r.randint(3, 8)
    s["count"] = ", ".join(numbers[:last])
    s["less"] = ", ".join(numbers[:last - 1])
    s["num"], s["fewer"] = numbers[last - 1], numbers[last - 2]
    return opening(r, s, "{S} saw some {many} {where}. [{He} wanted to count them.|((n: How "
                   "many {many} are there?))|{He} was learning to count.]") + """
        / {N} counted the {many}. ((n: {Count}. There are {num} {many}!)) [{He} was <proud>.|{He}
        ran to tell {mom}.|{He} told {mom}.]
        / {Mom} came to look. ((mom: Let us count them again.)) {N} counted again. ((n: {Less}.))
        [Oh no! There were only {fewer} {many}.|Now there were only {fewer} {many}.] ((n: [One {one}
        is gone!|Where is the last {one}?]))
        / They looked and looked. [The last {one} was {away}.|{Mom} smiled. The last {one} was
        {away}.] [((n/cried: There it is!))|((n/cried: I see it!))|((mom: There it is, {n}.))] {N}
        counted one more time. ((n: {Count}. {Num} {many}!)) [{Mom} clapped {mhis} hands.|((mom:
        Good counting, {n}!))] [That night, {n} counted {many} until {he} fell asleep. {Count}.|Now
        {n} counts everything. {Count}!|<goodday>]"""


def farm_sounds(r, s):
    child(r, s)
    chosen = r.sample(FARM, 4)
    for i, entry in enumerate(chosen, 1):
        s[f"a{i}"], s[f"sound{i}"] = entry[0], entry[1]
        s[f"Sound{i}"] = upper(entry[1])
    s["farmer"] = r.choice(["Grandpa", "Grandma", "the farmer", "Uncle Bob", "Aunt May"])
    sounds = " ".join(r.choice([
        [f"The {{a{i}}} said {{sound{i}}}." for i in (1, 2, 3)],
        [f'"{{Sound{i}}}, {{sound{i}}}," said the {{a{i}}}.' for i in (1, 2, 3)]]))
    return opening(r, s, "{S} went to the farm to see {farmer}. [All the animals said "
                   "hello.|The farm was full of animals.|It was loud at the farm!]") + f"""
        / {sounds} But the {{a4}} said nothing.
        / [((n: What is wrong with the {{a4}}?))|((n: Why is the {{a4}} so quiet?))] ((farmer: [I do
        not know.|I think the {{a4}} is sad.|The {{a4}} has been quiet all day.]))
        / {{N}} sat next to the {{a4}}. [{{He}} gave the {{a4}} some food.|{{He}} gave the {{a4}} a
        hug.|{{He}} sang a song to the {{a4}}.] [The {{a4}} looked at {{him}}.|The {{a4}} came
        close.|] [((n: You are a good {{a4}}.))|((n: Will you be my friend?))] And then the {{a4}}
        said {{sound4}}! [((n/shouted: The {{a4}} said {{sound4}}!))|{{N}} <smiled>.]
        / {sounds} And the {{a4}} said {{sound4}}! [Now the farm was loud and happy.|It was a happy
        song.|They all said good night to {{n}}.|<goodday>]"""


def rhyme(r, s):
    animal(r, s)
    line = r.choice([
        ("Hop, hop, hop, I will not stop!", "hop"), ("Row, row, row, to the sea I go!", "row"),
        ("Up the hill and down again, in the sun and in the rain!", "walk"),
        ("One step, two steps, three steps, four, soon I will be at my door!", "walk"),
        ("Tra la la and tra la lee, who will come and play with me?", "sing"),
        ("Hey ho, hey ho, home I go, home I go!", "walk"),
        ("The sun is up, the sky is blue, I will sing a song for you!", "sing"),
        ("Bim bam boom, bim bam boom, who will come and give me room?", "sing"),
        ("Roll and roll and round we go, sometimes fast and sometimes slow!", "roll"),
        ("Moon so bright and stars so small, good night, good night, good night all!", "sing")])
    s["line"] = line[0]
    s["place"] = r.choice(PLACES)
    animal(r, s, "2")
    animal(r, s, "3")
    return opening(r, s, "{S} went to {place}. [{He} was happy, so {he} sang a song.|{He} sang "
                   "a little song on the way.] \"{line}\"", hobby=False) + """
        / [On the way, {he} met|Soon {he} met|By a big rock, {he} met] {n2} the {kid2}. {N2} was
        [sad|alone|bored]. [((n2: I like your song.))|((n2: Can I come with you?))] ((n: Come and
        sing with me!)) So they sang, "{line}"
        / Then they met {n3} the {kid3}. [((n3: Go away! You are too loud.))|((n3: What is that
        noise? I want to sleep!))] [{N} stopped singing.|{N} and {n2} were sad.] [They waited.|It
        was very quiet.|] [But then it was too quiet.|{N3} tried to sleep, but now it was too
        quiet.] ((n3: [I am sorry. Please sing again.|Oh, I miss the song.|Sing it for me,
        please.]))
        / So all three sang, "{line}" [They sang all the way home.|They sang until the moon came
        up.|And the whole forest sang with them.] [It is good to sing with friends.|They were all
        happy.|<after>, {n}, {n2} and {n3} sang together every day.]"""


def surprise(r, s):
    child(r, s)
    child(r, s, "2")
    child(r, s, "3")
    grown_up(r, s)
    s["all"] = "they all"
    colored(r, s, TOYS + ["hat", "scarf", "crown", "bag"])
    return opening(r, s, "it was {n}'s birthday. [{He} was <happy>.|{He} woke up early.] But "
                   "no one said happy birthday.",
                   when="[One day|One morning|One <sky> day]") + """
        / {N} went to {his} friend {n2}. [((n: Do you know what day it is?)) ((n2: I do not
        know.))|((n: Can you play with me?)) ((n2: I can not play now. I have work to do.))] {N}
        went to {his} friend {n3}. [((n: Can we play a game?)) ((n3: Not now, {n}.))|((n: Is this a
        special day?)) ((n3: I do not think so.))|((n: Will you play with me?)) ((n3: No, I am
        sorry.))] {N} felt <sad>. [((n: Everyone forgot my birthday.))|{He} walked home alone.|{He}
        thought that no one loved {him}.]
        / When {he} came home, the house was dark. {N} opened the door. ((all/shouted: Surprise!
        Happy birthday, {n}!)) [There was {n2}! There was {n3}! And there was {mom} with a big
        cake!|{N2} was there, and {n3} was there, and {mom} had a big cake!] [((n2: We did not
        forget.))|] They gave {him} a {thing}. [((n/cried: A {thing}! I love it!))|((n: This is just
        the {toy} I wanted!))] [They ate cake and played with the {thing}.|They sang and ate
        cake.|They danced and played all day.] [It was the best birthday ever.|{N} was <happy> and
        hugged {n2} and {n3}.|Good friends never forget.]"""


def snowman(r, s):
    child(r, s)
    friend(r, s)
    pair(s)
    colored(r, s, ["hat", "scarf", "coat", "cape", "ribbon"])
    s["nose"] = r.choice(["carrot", "stick", "stone", "button", "red apple", "pine cone"])
    return opening(r, s, "it snowed and snowed. {N} and {his} {friend} {n2} ran outside. "
                   "[Everything was white.|The snow was soft and cold.|]",
                   when="[One winter day|One cold day|One cold morning|One winter morning]") + """
        / ((n: Let us make a snowman!)) They rolled one big ball, one small ball, and one tiny ball.
        [[They gave the snowman two stones for eyes.|The snowman had two black eyes.]|] [((n2: He
        needs a nose.)) They found a {nose} and gave it to him.|For the nose they took a {nose}.]
        [((n: He looks cold.))|((n2: The snowman looks sad.))|The wind was cold. The snowman looked
        cold, too.] So {n} [took off {his} {thing}|ran to get {his} {thing}] and gave it to the
        snowman. [Now the snowman had a {thing} and a big smile.|]
        / [The next day, the sun was hot.|After some days, it got warm.] The snowman got small, and
        smaller, and then he was gone. There was only the {thing} and the {nose}. [[{N2} was
        <sad>.|{both} were <sad>.]|] ((n: [Do not be sad.|Do not cry, {n2}.] [He will come back when
        it snows.|Next winter we will make him again.]))
        / [And next winter, they did.|And when it snowed again, they made a new snowman with the
        same {thing}.] [<together>|They waved and said, "Hello again, snowman!"|]"""


def clean_up(r, s):
    child(r, s)
    grown_up(r, s)
    colored(r, s, TOYS)
    colored(r, s, TOYS, "2")
    return opening(r, s, "{S} played in {his} room. Soon there were toys all over the floor. A "
                   "{thing} was on the bed, and a {thing2} was [by the door|on the "
                   "chair].") + """
        / {Mom} came in. ((mom: Please clean up your room, {n}.)) [((n: I do not want to.))|((n: I
        will do it later.))] [[{N} did not clean up.|{N} wanted to play, not to clean.]|] {He} ran
        to get {his} {thing2}. [But {he} stepped on a block. Ouch!|Oops! {He} fell over a shoe and
        hit {his} knee.] [((n/cried: My foot hurts!))|{N} began to cry.|]
        / [{Mom} <hug>.|] ((mom: [That is why we clean up.|When toys are on the floor, we can
        fall.|A clean room is a safe room.])) ((n: [You are right, {mama}.|I see. I will clean up
        now.])) {N} put the {thing} in the box and the {thing2} on the shelf. [{He} put the books in
        a row.|{He} made the bed.|] [{Mom} sang a song: "Clean up, clean up, one, two, three!"|It
        was hard work, but {he} did not stop.|They made it a game.]
        / Soon the room was clean. [[((n: Now I can see my {toy} and my {toy2}!))|((n: I like my
        clean room.))]|] [[Now there was a lot of room to play.|{Mom} was <proud>.]|] [<after>, {n}
        always put {his} toys away.|{N} played with the {thing} until bedtime.]"""


def little_engine(r, s):
    what, way, sound, load = r.choice([
        ("train", "up the hill", "choo, choo", "toys"), ("boat", "over the lake", "splash, splash",
        "fish"),
        ("truck", "up the hill", "brum, brum", "apples"), ("bus", "to the school", "beep, beep",
        "children"),
        ("plane", "over the hill", "zoom, zoom", "letters"), ("tractor", "up the road",
        "chug, chug", "hay"),
        ("car", "up the road", "vroom, vroom", "presents")])
    s["what"], s["way"], s["load"] = what, way, load
    s["sound"] = sound
    s["col"] = r.choice(COLORS)
    s["col2"] = r.choice([color for color in COLORS if color not in s.values()])
    s["small"], s["other"] = f"the little {s['col']} {what}", f"the big {s['col2']} {what}"
    return """[Once upon a time, there was|There once was|There was] a little {col} {what}. [It
        lived next to a big {col2} {what}.|Its friend was a big {col2} {what}.] {Sound}, {sound}!
        [Every day, the little {what} wanted to help.|The little {what} was small, but it was
        brave.|]
        / <when>, the big {col2} {what} could not go. [It was sick.|It was broken.|It was too old.]
        ((other: Who will take the {load} {way}?)) ((small: I will take the {load} {way}.))
        [((other: You are too small.))|The others laughed. "You are too small," they said.]
        / But the little {col} {what} took the {load}. {Sound}! [[The way was long.|The wind was
        strong.|It was very hard.]|] The little {what} was tired. ((small: I think I can. I think I
        can.)) [It went a little more. ((small: I think I can. I think I can.))|]
        / And then it was there! {Sound}! [[Everyone clapped.|All the people were happy.]|] ((other:
        [You are small, but you are strong.|Good job, little {what}!|I was wrong. You did it!]))
        [The little {col} {what} was <proud>.|<after>, no one said that it was too small.|If you
        think you can, you can.]"""


def lost_in_woods(r, s):
    child(r, s)
    animal(r, s, "2", WOODS)
    s["the2"] = "the " + s["kid2"]
    s["thing"] = r.choice(["butterfly", "red leaf", "little bird", "white feather",
                           "blue butterfly"])
    grown_up(r, s)
    return opening(r, s, "{S} [saw a {thing} and ran after it|followed a {thing} into the "
                   "woods]. {He} went on and on. [The trees were tall "
                   "and dark.|]") + """
        / Then {he} stopped. [{He} did not know where {he} was.|There was no path.] {N} was lost!
        [[((n: I want to go home.))|((n/cried: Help! I am lost!))]|] [{He} sat down and cried.|{He}
        was <scared>.] A {kid2} came out from behind a tree. [((the2: Why do you cry, little
        {kid}?))|((the2: Hello. My name is {n2}. What is wrong?))] ((n: I can not find my way
        home.)) ((the2: I know the way. Come with me.))
        / So {n} went with the {kid2}. [They went over the bridge. They went by the big rock. They
        went [up the hill|past the old tree].|] [The {kid2} told funny stories on the way.|{N} was
        not afraid any more.|] And there was {n}'s house! {Mom} was at the door. ((mom: [{N}! I was
        so worried!|There you are! I looked for you.])) {Mhe} <hug>. [[((n: The {kid2} helped
        me.))|((n: I will never run off again, {mama}.))]|]
        / [{N} gave the {kid2} some {eats2}.|] [Then the {kid2} {ran2} back to the woods.|((the2:
        Thank you, {n}.))|] [<after>, {n} and the {kid2} were friends.|{N} waved until {he} could
        not see the {kid2} any more.|{N} was <happy> to be home.]"""


def gift_picture(r, s):
    child(r, s)
    grown_up(r, s)
    s["c1"], s["c2"], s["c3"] = r.sample([color for color in COLORS if " " not in color], 3)
    s["d1"], s["d2"] = r.sample(["sun", "house", "tree", "cat", "dog", "flower", "boat", "bird",
                                 "fish",
                                 "star", "horse", "moon", "car", "heart"], 2)
    return opening(r, s, "{S} wanted to make a gift for {mom}. [{He} had no money.|It was "
                   "{mhis} birthday soon.|{He} thought for a long time.] ((n: I will "
                   "make a picture.))") + """
        / {N} [took a {c1} crayon and a {c2} crayon|had a {c1} crayon and a {c2} crayon]. {He} drew
        a {c1} {d1}. Then {he} drew a {c2} {d2}. [It was very pretty.|((n: It looks so nice!))|] But
        then [the dog bumped the table|{he} knocked over a cup]. [Splash!|] Now there was a big {c3}
        spot on the picture! {N} was <sad>. [((n/cried: My picture is bad now!))|{He} wanted to
        throw the picture away.|] [[{He} looked at the {c3} spot.|{He} looked at it for a long
        time.]|] Then {he} <idea>. {He} made the {c3} spot into a [cloud|balloon|funny fish|big
        flower|butterfly].
        / {N} gave the picture to {mom}. ((mom: [I see a {c1} {d1} and a {c2} {d2}!|Oh! What a
        lovely {c1} {d1}!] [And what is this {c3} thing?|I like the {c3} one best.])) [[((n: It was
        a spot, but I made it better.))|{N} told {mhim} about the spot.]|] {Mom} laughed and <hug>.
        [((mom: I love it, and I love you.))|((mom: It is the best gift of all.))] [[{Mhe} put the
        picture on the wall.|The picture is still on the wall.]|] [A gift from the heart is the best
        gift.|<goodday>|]"""


def stuck_kite(r, s):
    child(r, s)
    friend(r, s)
    pair(s)
    s["col"] = r.choice(COLORS)
    s["tree"] = r.choice(["tree", "oak tree", "apple tree", "pine tree"])
    s["a"] = r.choice(["bird", "squirrel", "cat", "mouse", "owl"])
    return opening(r, s, "{S} and {his} {friend} {n2} went to [the park|the hill|the beach|the "
                   "meadow] with a {col} kite. The wind was strong.",
                   when="[One windy day|One windy morning|One windy afternoon]") + """
        / The {col} kite went up, up, up. [((n2: Look how high it is!))|((n2/cried: Look! It can
        fly!))|They laughed and ran.] [Then the wind blew hard.|"Whoosh!" went the wind.] The kite
        flew into a big {tree} and got stuck. [((n/cried: Oh no! My {col} kite!))|]
        / {N} pulled the string. The kite did not come down. {N2} [threw a stick|shook the {tree}].
        The kite did not come down. [They called, "Come down, kite!" The kite did not come down.|]
        [[They were <sad>.|{N} sat down and was <sad>.]|]
        / A little {a} [saw them|was in the {tree}]. [It looked at the kite.|It looked at the sad
        children.|] It [pulled|pushed] the {col} kite, and the kite came down! ((n: [Thank you,
        little {a}!|You are a good {a}!])) {N2} gave the {a} [a piece of bread|a nut|some of {his2}
        lunch]. [The {a} was <happy>.|] [Then the {col} kite flew high again.|They flew the {col}
        kite until dark.] [The {a} watched it and danced.|<together>|Even a little {a} can be a big
        help.|They said goodbye to the {a}, <home>]"""


def greedy(r, s):
    animal(r, s)
    animal(r, s, "2")
    s["food"] = r.choice(MANY_FOODS)
    s["num"] = r.choice(["five", "six", "seven", "eight", "nine", "ten", "twenty"])
    return opening(r, s, "{S} found {num} {food} [in a basket|on a big plate|in a big bowl|in "
                   "a box]. ((n: These {food} are all for me!))", hobby=False) + """
        / {N2} the {kid2} came by. ((n2: [May I have some {food}?|I am hungry. Can we share?])) ((n:
        No! They are mine, mine, mine!)) {N2} [was <sad> and went away|walked away with no {food}].
        / {N} ate one. {He} ate two. {He} ate three. {He} ate all of the {food}! [Then {his} tummy
        began to hurt.|Oh, oh! {His} tummy was big and round, and it hurt.] [((n/cried: Oh, my
        tummy!))|((n: I ate too much.))] [{He} could not walk.|{He} lay down in the grass.]
        / {N2} heard {him} and came back. [{He2} gave {n} some water.|{He2} sat with {n} all
        night.|{He2} made warm tea for {n}.] [((n: You are so kind, and I was not.))|((n: I am
        sorry, {n2}. I was not nice to you.))] ((n2: [It is all right.|Next time we can share.]))
        / [The next day|Soon], {n} was well. {He} found some more {food}. [((n: One for you, and one
        for me.))|This time, {he} gave half of the {food} to {n2}.] [The {food} tasted much
        better.|They ate together and were happy.] [It is better to share.|<friends>|And {n} was
        never greedy again.]"""


def take_turns(r, s):
    child(r, s)
    child(r, s, "2")
    pair(s)
    s["lady"] = r.choice(["teacher", "kind woman", "big girl", "nice lady"])
    s["thelady"] = "the " + s["lady"]
    s["toy"] = r.choice(["swing", "slide", "bike", "scooter", "wagon", "drum", "rocking horse",
                         "trampoline",
                         "sled", "big ball", "pony"])
    s["col"] = r.choice(COLORS)
    return opening(r, s, "{S} and {n2} [were at the park|were at school|were in the yard]. "
                   "There was only one {col} {toy}. [They both ran to it.|They both "
                   "wanted it.]") + """
        / ((n: It is mine! I was here first.)) ((n2: No, it is mine!)) [[They pulled and they
        pushed.|They were both very angry.|{N} made an angry face, and {n2} made an angry face.]|]
        [{N} cried, and {n2} cried, too.|No one had fun.|]
        / A {lady} came to them. ((thelady: [Why do you fight?|What is wrong?])) ((n: I want the
        {col} {toy}.)) ((n2: I want it, too.)) The {lady} smiled. ((thelady: You can take turns.
        [First one, and then the other.|Count to ten, and then change.]))
        / [{N} thought about it.|] [((n: You can go first, {n2}.))|((n: All right. You go first.))]
        [{N2} was surprised.|] {N2} had a turn, and {n} counted to ten. Then {n} had a turn, and
        {n2} counted to ten. [Then they did it again, and again.|They laughed and laughed.] [((n2:
        This is fun!))|((n2: Now it is your turn, {n}!))|] The {col} {toy} was more fun with two.
        [<friends>|It is good to take turns.|{both} did not fight any more.]"""


def birds_nest(r, s):
    s["n"] = r.choice(["an old tree", "a big tree", "a little tree", "a tall tree"])
    s["kind"] = s["n"].split(" ", 1)[1]
    s["tree"] = "the " + s["kind"]
    s["a"], s["many"], s["home"] = r.choice([
        ("bird", "birds", "nest"), ("squirrel", "squirrels", "home"), ("owl", "owls", "home"),
        ("bee", "bees", "hive"), ("mouse", "mice", "home"), ("bat", "bats", "home")])
    s["col"] = r.choice(["brown", "gray", "black", "white", "red", "little", "tiny", "silver"])
    s["thea"] = f"the {s['col']} {s['a']}"
    s["place"] = r.choice(["on a hill", "in a field", "by a river", "in a big garden",
                           "near the sea"])
    return """[Once upon a time, there was|There was|There once was] {n} {place}. It stood all
        alone. [No one came to see it.|It had no friends.] ((tree: I am so lonely. I wish I had a
        friend.)) <when>, a {col} {a} came by. It was [cold and wet|tired and cold]. [The rain fell
        and the wind blew.|It had no place to stay.] ((thea: I have no home.)) ((tree: [You can stay
        with me.|Come into my arms. I will keep you warm.])) [The {col} {a} was <happy>.|((thea:
        Thank you, kind tree.))] The {col} {a} made a {home} in the {kind}. [Every morning it sang
        to the tree.|They talked all day.|At night, they looked at the stars.] In the summer, the
        tree gave it shade. In the winter, the tree kept it safe. [Soon there were three baby
        {many}, too. One, two, three!|Then more and more animals came to live there.|]
        / [((thea: You are the best tree in the world.))|((tree: Now I am not alone.))] [The {kind}
        was never lonely again.|And the {kind} and the {col} {a} were friends for a long, long
        time.|And they lived happily ever after.]"""


def coin(r, s):
    child(r, s)
    s["who"], s["whe"], s["need"] = r.choice([
        ("an old man", "he", "some bread"), ("an old woman", "she", "some milk"),
        ("a little girl", "she", "a warm hat"), ("a little boy", "he", "a pair of mittens"),
        ("a young man", "he", "a bowl of soup"), ("a young woman", "she",
        "some food for my baby")])
    s["short"] = "the " + s["who"].split(" ", 1)[1]
    s["whim"] = "him" if s["whe"] == "he" else "her"
    s["num"] = r.choice(["one", "two", "three", "four", "five", "ten"])
    s["coins"] = "coin" if s["num"] == "one" else "coins"
    colored(r, s, TOYS + THINGS)
    return opening(r, s, "{S} went to the [market|store|shop] with {num} {coins}. {He} wanted "
                   "to buy a {thing}. [{He} had saved for a long time.|{He} had wanted "
                   "the {toy} for a long time.|]") + """
        / On the way, {he} saw {who}. [{Short} [looked sad and cold|was sad and hungry]. ((n: What
        is wrong?))|] {Short} said, "I need {need}, but I have no money." [{N} looked at the {num}
        {coins} in {his} hand.|] {N} thought of the {thing}. [It was hard.|{He} did not know what to
        do.|] Then {he} smiled and gave the {num} {coins} to {short}. [((n: [This is for you.|You
        need it more than I do.]))|]
        / [((short: [Thank you! You have a good heart.|Oh, thank you! You are so kind.]))|] [Now
        {n}|{N}] could not buy the {thing}. [[But {he} felt warm inside.|But {he} was not sad.]|]
        / [The next day|A week later], there was a box at {n}'s door. In the box was a {thing}!
        [[((n/cried: It is the {toy} I wanted!))|{N} could not believe it.]|] [[A note said, "To a
        kind {kid}."|It was a gift from {short}.]|] [If you are kind, good things come back to
        you.|{N} loved the {thing} for a long, long time.|{N} ran to {short} to say thank you.]"""


def treasure(r, s):
    child(r, s)
    friend(r, s)
    pair(s)
    s["spot1"], s["spot2"], s["spot3"] = r.sample(OUTSIDE, 3)
    s["col"] = r.choice(COLORS)
    s["gift"] = r.choice(["candy", "gold coins made of chocolate", "cookies", "little toys",
                          "shiny stones",
                          "pretty shells", "old books", "colored beads"])
    return opening(r, s, "{S} and {his} {friend} {n2} found [a map|an old map]. ((n/cried: It "
                   "is a treasure map!))") + """
        / The map said, "Look {spot1}." They ran to look {spot1}.  There was a note. It said, "Look
        {spot2}." [((n2: Come on, {n}!))|((n: Let us go, {n2}!))|] They ran to look {spot2}. They
        found one more note. It said, "Look {spot3}."
        / [{N2} was tired.|{N2} fell down and hurt {his2} knee.] ((n2: I can not go on. [You go and
        get the treasure.|You go, {n}.])) ((n: No. [We go together.|I will wait for you.|I will help
        you.])) [{N} held {n2}'s hand, and they walked slowly.|]
        / They looked {spot3}. There was a {col} box! [((n: [One, two, three, open!|Open it,
        {n2}!]))|] The {col} box was full of {gift}. [[They jumped up and down.|((n2/cried: We are
        rich!))|They clapped their hands.]|] [They shared the {gift}, half for {n} and half for
        {n2}.|((n: Half for you, and half for me.))] [((n2: You are the real treasure, {n}.))|((n:
        It was fun because we did it together.))|] [A good friend is the best
        treasure.|<together>|It was the best game ever.]"""


def say_sorry(r, s):
    child(r, s)
    child(r, s, "2")
    colored(r, s, ["hat", "coat", "scarf", "bag", "dress", "shirt",
                   "cape"] if s["kid2"] == "girl" else
            ["hat", "coat", "scarf", "bag", "shirt", "cape"])
    return opening(r, s, "{n2} came to school with a new {thing}. {N2} was <proud> of it. But "
                   "{n} [laughed|pointed and laughed]. ((n: That is a silly {toy}!))",
                   hobby=False) + """
        / {N2} [did not say a thing|looked down]. {He2} took off the {thing} and [put it away|hid
        it]. [A tear ran down {his2} face.|{He2} sat all alone.] [At lunch, {n2} did not eat.|{N2}
        did not want to play.|] {N} saw that {n2} was sad. [{N} did not feel good.|{N} felt bad
        inside.|{N}'s tummy felt funny.] ((n: [Why did I say that?|That was not nice of me.|I made
        {n2} sad.])) [{He} did not know what to do.|{He} thought about it all day.|] Then {n} went
        to {n2}. ((n: I am sorry, {n2}. [I was mean.|I was not nice.] I like your {thing}.))
        / ((n2: [Do you really like it?|Is that true?])) ((n: Yes. [It is a very nice {toy}.|I wish
        I had a {toy} like that.])) {N2} put the {thing} on again. [[{He2} smiled.|{He2} was happy
        again.]|] ((n2: [You can try it on.|Thank you, {n}. Let us play.])) {N} put on the {thing},
        and they both laughed. [<friends>|Kind words make everyone happy.|It is never too late to
        say sorry.]"""


def hot_soup(r, s):
    animal(r, s, "", [a for a in ANIMALS if a[0] in ("bear", "cat", "dog", "pig", "mouse",
                      "rabbit", "fox",
                                                     "tiger", "lion", "monkey", "hedgehog",
                                                     "squirrel")])
    s["baby"] = r.choice(["baby", "young", "little"])
    s["soup"] = r.choice(["soup", "porridge", "tea", "milk", "stew", "cocoa"])
    s["col"] = r.choice(COLORS)
    s["mum"] = r.choice(["Mother", "Grandmother", "Mama"]) + " " + upper(s["kid"])
    return opening(r, s, "{Mum} made hot {soup}. She put it in a {col} bowl. [It smelled so "
                   "good.|{N} was very hungry.|]") + """
        / ((mum: Do not eat yet, {n}. The {soup} is too hot.)) [[{Mum} went out to get some
        wood.|{Mum} went to get some bread.]|] [[{N} looked at the {col} bowl.|{N} did not want to
        wait.]|] [((n: It does not look hot.))|((n: I will take just a little sip.))|] {N} took a
        big sip. "Ow, ow, ow!" The {soup} was too hot! [{N} dropped the {col} bowl.|{N} jumped and
        the {col} bowl fell.] [Splash!|] The {soup} was on the floor. {Mum} came back. [((mum: [What
        happened?|Oh, {n}!]))|] ((n: I did not listen. I am sorry.)) {Mum} gave {n} cold water and
        <hug>. [((mum: [I tell you things to keep you safe.|Next time, please listen.]))|] [They
        cleaned the floor together.|]
        / Then {mum} put new {soup} in the {col} bowl. This time, {n} waited. [{He} counted, "One,
        two, three, four, five."|{He} blew on it. Whoo, whoo, whoo.] At last, the {soup} was just
        right. [[((n: Yum!))|((n: It was good to wait.))]|] [<after>, {n} always listened to
        {mum}.|Some things are worth the wait.]"""


def band(r, s):
    for suffix in ("", "2", "3"):
        child(r, s, suffix)
    names = [("drum", "boom, boom, boom"), ("bell", "ding, ding, ding"), ("flute",
             "toot, toot, toot"),
             ("whistle", "tweet, tweet, tweet"), ("horn", "honk, honk, honk"), ("guitar",
             "strum, strum, strum"),
             ("piano", "plink, plink, plink")]
    for suffix, (toy, sound) in zip(("", "2", "3"), r.sample(names, 3)):
        s["toy" + suffix] = toy
        s["sound" + suffix] = sound
    s["col"], s["col2"], s["col3"] = r.sample(COLORS, 3)
    return opening(r, s, "{S} got a {col} {toy}. {Sound}, it went. [{N} played it all day.|{N} "
                   "loved the {toy}.|] But it was not so much fun to play alone.",
                   hobby=False) + """
        / {N} went to {n2}. {N2} had a {col2} {toy2}. {Sound2}, it went. Then they went to {n3}.
        {N3} had a {col3} {toy3}. {Sound3}, it went. ((n: [Let us make a band!|We can be a band!]))
        / They all played at the same time, but it was too loud. [A dog ran away.|A baby began to
        cry.|A man closed his window.] [((n2: [That was bad.|It is just a lot of noise.]))|] [They
        were <sad>.|] ((n3: [We must listen to each other.|Let us take turns.|First one, then two,
        then three.]))
        / So first came the {toy}: {sound}. Then came the {toy2}: {sound2}. Then came the {toy3}:
        {sound3}. [It was a real song!|Now it was music!] [The dog came back to hear it.|All the
        people came to listen.|The people danced in the street.] [{N}, {n2} and {n3} were
        <proud>.|((n: We are a good band!))] [<after>, they played together every day.|When friends
        listen to each other, they make good music.|]"""


def moon(r, s):
    animal(r, s, "", [a for a in ANIMALS if a[0] not in ("penguin", "bird", "owl", "duck",
                      "goose")])
    s["wish"], s["try1"], s["try2"] = r.choice([
        ("touch the moon", "climbed a tall tree", "climbed a high hill"),
        ("fly like a bird", "jumped from a rock", "put leaves on {his} arms"),
        ("see the sea", "looked from a tall tree", "looked from a high hill"),
        ("catch a star", "jumped up high", "got a long net")])
    s["try2"] = s["try2"].replace("{his}", s["his"])
    s["old"] = r.choice([a for a in ("owl", "turtle", "goat", "bear") if a != s["kid"]])
    s["theold"] = f"the old {s['old']}"
    end = {
        "touch the moon": """The old {old} took {n} to the pond. The moon was in the water! {N} put
            out {his} foot and touched it.""",
        "fly like a bird": """The old {old} took {n} to a swing. The swing went high, and the wind
            was in {n}'s face. It was just like flying!""",
        "see the sea": """The old {old} took {n} by the hand. They walked for one day and two
            nights. And there it was, the big blue sea!""",
        "catch a star": """The old {old} took {n} to the meadow at night. There were little lights
            in the grass. {N} held one in {his} hands, and it was just like a star.""",
    }[s["wish"]]
    return opening(r, s, "{S} said, \"I wish I could {wish}.\" {He} thought about it all day "
                   "and all night.",
                   hobby=False) + f"""
        / First, {{n}} {{try1}}. [But it did not work.|It was no good.] Then {{he}} {{try2}}. [But
        it did not work.|It was no good.] {{N}} was <sad>. [((n: I will never {{wish}}.))|((n: It is
        too hard to {{wish}}.))] [An old {{old}} heard {{him}}.|The old {{old}} came by.] ((theold:
        What is wrong, little {{kid}}?)) ((n: I want to {{wish}}.)) ((theold: [I think I can help
        you.|Come with me.|I know a way.])) {end} [((n/cried: My wish came true!))|((n: Oh, thank
        you!))] [The old {{old}} smiled.|((theold: There is always a way, if you ask a friend.))]
        [{{N}} was <happy>.|{{N}} never forgot that night.|And {{n}} and the old {{old}} were good
        friends from then on.]"""


PLOTS = [lost_toy, shared_food, afraid_of_dark, hurt_animal, bake, rain_picnic, new_friend, learn,
         broke, proud_animal, race, seed, missing_pet, tower, sick_friend, noise, too_high, trip,
         trade, counting, farm_sounds, rhyme, surprise, snowman, clean_up, little_engine,
         lost_in_woods, gift_picture, stuck_kite, greedy, take_turns, birds_nest, coin, treasure,
         say_sorry, hot_soup, band, moon]


def compose(r, plot):
    """A story of one plot, of any length."""
    slots = {}
    template = plot(r, slots)
    end = r.choice(["", "", "", "", "", " The end."])
    return paragraphs(r, expand(r, slots, template)) + end


def story(number):
    """The story of a seed, with a line break between paragraphs."""
    r = random.Random(number)
    plot = r.choice(PLOTS)
    while True:
        text = compose(r, plot)
        if FEWEST_WORDS <= len(text.split()) <= MOST_WORDS:
            return text


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--first-seed", type=int, required=True)
    parser.add_argument("--stories", type=int, required=True)
    arguments = parser.parse_args()
    for number in range(arguments.first_seed, arguments.first_seed + arguments.stories):
        sys.stdout.write(story(number).replace("\n", "\t") + "\n")


if __name__ == "__main__":
    main()
