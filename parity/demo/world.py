"""The small world that the demo model knows: plain facts, nothing computed."""

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip

OPPOSITES = (
    ("hot", "cold"), ("big", "small"), ("up", "down"), ("left", "right"), ("open", "closed"),
    ("fast", "slow"), ("happy", "sad"), ("light", "dark"), ("wet", "dry"), ("old", "new"),
    ("high", "low"), ("long", "short"), ("full", "empty"), ("early", "late"), ("rich", "poor"),
    ("hard", "soft"), ("loud", "quiet"), ("thick", "thin"), ("good", "bad"), ("day", "night"),
)  # fmt: skip

COLOURS = (
    ("the sky", "blue"), ("grass", "green"), ("snow", "white"), ("coal", "black"),
    ("a banana", "yellow"), ("a tomato", "red"), ("a carrot", "orange"), ("milk", "white"),
    ("the sun", "yellow"), ("a frog", "green"), ("an elephant", "grey"), ("chocolate", "brown"),
    ("a flamingo", "pink"), ("a raven", "black"), ("a leaf", "green"), ("a strawberry", "red"),
    ("the sea", "blue"), ("a lemon", "yellow"), ("a pumpkin", "orange"), ("a plum", "purple"),
)  # fmt: skip

PLURALS = (
    ("cat", "cats"), ("dog", "dogs"), ("book", "books"), ("tree", "trees"), ("car", "cars"),
    ("box", "boxes"), ("bus", "buses"), ("city", "cities"), ("baby", "babies"),
    ("leaf", "leaves"), ("wolf", "wolves"), ("knife", "knives"), ("mouse", "mice"),
    ("goose", "geese"), ("foot", "feet"), ("tooth", "teeth"), ("man", "men"),
    ("woman", "women"), ("child", "children"), ("ox", "oxen"), ("sheep", "sheep"),
    ("fish", "fish"), ("café", "cafés"), ("apple", "apples"),
)  # fmt: skip

CAPITALS = (
    ("France", "Paris"), ("Germany", "Berlin"), ("Italy", "Rome"), ("Spain", "Madrid"),
    ("Portugal", "Lisbon"), ("England", "London"), ("Ireland", "Dublin"), ("Norway", "Oslo"),
    ("Sweden", "Stockholm"), ("Finland", "Helsinki"), ("Poland", "Warsaw"), ("Austria", "Vienna"),
    ("Greece", "Athens"), ("Egypt", "Cairo"), ("Kenya", "Nairobi"), ("Japan", "Tokyo"),
    ("China", "Beijing"), ("Brazil", "Brasília"), ("Colombia", "Bogotá"), ("Canada", "Ottawa"),
    ("Peru", "Lima"), ("Cuba", "Havana"),
)  # fmt: skip

TALK = (
    (("Hello!", "Hello.", "Hi!", "Good morning!"), "Hello! Ask me something small."),
    (("Who are you?", "What are you?", "What is your name?"), "I am a tiny model with few words."),
    (("Thank you!", "Thanks!", "Thank you."), "You are welcome."),
    (("Goodbye!", "Bye!", "See you!"), "Goodbye!"),
)
