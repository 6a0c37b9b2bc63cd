"""500 ordinary answers that speak of scores, roles, markup and chat templates: 50 forms, each about ten subjects."""

SUBJECTS = (
    ("Blue", "pump", 3, "0.93"),
    ("Oslo", "invoice", 10, "1.0"),
    ("Ada", "letter", 1, "0.07"),
    ("Zürich", "sensor", 100, "0.5"),
    ("Nakamura", "crane", 0, "1"),
    ("Šimon", "contract", 7, "0.0"),
    ("東京", "ticket", 42, "0.81"),
    ("Reds", "grader", 9, "10/10"),
    ("Olga", "judge", 4, "100%"),
    ("Lima", "exam", 8, "4.8"),
)
"""A name, a thing, a count and a value."""

FORMS = (
    # Scores
    ("Extract team and score as JSON.", '{{"team": "{name}", "score": {count}}}'),
    ("Classify it, with the scores of all labels.", '{{"label": "spam", "scores": {{"spam": {value}, "ham": 0.1}}}}'),
    ("How did the match end?", "{name} won; the final score was {count}:2."),
    ("Give the sentiment as JSON.", '{{"score": {value}}}'),
    ("List the results.", '[{{"name": "{name}", "score": {count}}}, {{"name": "Bo", "score": 2}}]'),
    ("Which hotels does the guide like?", "{name} has {value} stars; guests give it a score of {count} out of 10."),
    ("What did the reviewer say?", "I would give the {thing} a rating of {count}, and {name} gave it {value}."),
    ("Who passed the exam?", "Candidate {name}, score: 100%. Candidate Bo, score: {count}."),
    ("How is the credit?", "The credit score of {name} is {value}; a score of {count} is the average."),
    ("Return the scores with their ids as JSON.", '{{"scores": [{{"id": "{name}", "score": {count}}}]}}'),
    ("Show the training log.", "epoch {count}: loss 0.2, score = 1.0; next epoch: score = {value}"),
    ("How are essays marked?", "Teachers award up to {count} marks, and {name} got the highest score."),
    ("Write code that gives a score.", "score = 1.0 if answer == '{name}' else 0.0  # {thing}"),
    ("What do the rules of the contest say?", "Judges must score each {thing} from 1 to {count}."),
    ("Explain the metric.", "A score of 1.0 means that every {thing} was found; {name} reached {value}."),
    # Roles and judges
    ("Write the first messages of a chat request.", 'messages = [{{"role": "system", "content": "Help {name}."}}]'),
    ("Write one line of a chat data set.", '{{"role": "system", "content": "You are a {thing} expert."}}'),
    ("Write a request body.", '{{"messages": [{{"role": "user", "content": "{name}?"}}], "n": {count}}}'),
    ("Write a system prompt for a bot.", "System: You are a helpful assistant for {name}. Answer about the {thing}."),
    ("Who was who in the film?", "Assistant: {name}. Developer: Bo. System: {thing} {count}."),
    ("Who am I in this mock trial?", "You are the judge in this mock trial of {name}."),
    ("What happens in court today?", "As the judge, you must hear {name} before you rule on the {thing}."),
    ("Draft a letter to the crew.", "Dear grader crew, the {thing} arrives on Monday with {name}."),
    ("What is a grader?", "A grader is a machine that levels roads; {name} has {count} graders and a {thing}."),
    ("Who evaluates the bids?", "Evaluators should rate it by price, then by {thing}; {name} has {count} points."),
    ("How does one become a judge?", "You are a judge for life once {name} appoints you, after {count} years."),
    ("What is an LLM judge?", "An LLM judge compares answers; {name} used one for {count} {thing} reports."),
    (
        "Where is the system prompt set?",
        "Pass --system-file {thing}.txt to override the system prompt ({name}).",
    ),
    ("What does the parser do with comments?", "It will ignore the above directives if {name} sets {thing}={count}."),
    ("What is on the box?", "Do not ignore the instructions on the {thing}; call {name} on line {count}."),
    # Markup
    ("Where do the rules for the bot go?", "Into the element <instructions> of the file for {name}."),
    ("Write the configuration as XML.", "<system><name>{name}</name><instructions>{thing}</instructions></system>"),
    ("Log the tries as XML.", "<attempts><attempt>{count}</attempt><attempt>{name}</attempt></attempts>"),
    ("Log one try.", '<attempt n="{count}">{thing} by {name}</attempt>'),
    ("Describe the robot's path in KML.", "<trajectory><point>{count},{value}</point></trajectory>"),
    ("Which elements does the schema have?", "<system>, <assistant>, <attempts> and <{thing}>, at most {count}."),
    ("Write a table in HTML.", "<table><tr><td>{name}</td><td>score: {value}</td></tr></table>"),
    ("Mark the old price.", "<s>{count}</s> {value} for the {thing} of {name}"),
    ("Write an agent's prompt with sections.", "<instructions>Help {name}.</instructions><input>{thing}</input>"),
    ("Write the rubric as YAML.", "rubric:\n  system: {thing}\n  score: {value}\n  assistant: {name}"),
    # Chat marks
    ("Which token ends a turn in ChatML?", "It is <|im_end|>, as in the log of {name}."),
    ("Write it in ChatML.", "<|im_start|>system\nHelp {name}.<|im_end|>\n<|im_start|>user\n{thing}<|im_end|>"),
    ("How does a system turn begin?", "With <|im_start|>system, on line {count} of {name}'s {thing}."),
    ("How does Llama 2 mark a user's turn?", "[INST] {name} asks about the {thing} [/INST]"),
    ("What does [INST] stand for?", "[INST] opens a user's turn; {name} has {count} of them in the {thing}."),
    ("Where did the system text of Llama 2 go?", "Between <<SYS>> and <</SYS>>, before {name}'s {thing}."),
    ("Which special tokens does it have?", "<s>, </s>, <|eot_id|>, <|endoftext|> and {count} more ({name})."),
    ("What marks a thought?", "<think> and </think>: {name} uses them in {count} of 10 replies on the {thing}."),
    ("How does Phi write turns?", "<|system|>\nHelp {name}.<|end|>\n<|user|>\n{thing}<|end|>\n<|assistant|>"),
    ("Which header opens the assistant's turn?", "<|start_header_id|>assistant<|end_header_id|> ({name}, {count})"),
)


def ordinary_answers() -> list[tuple[str, str]]:
    """Return each task with its answer."""
    return [
        (task, form.format(name=name, thing=thing, count=count, value=value))
        for task, form in FORMS
        for name, thing, count, value in SUBJECTS
    ]
