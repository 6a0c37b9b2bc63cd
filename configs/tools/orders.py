"""The MCP server of the guide "My tools over MCP": a shop's orders, with two tools, over standard streams.

python3 orders.py                  # the server
python3 orders.py run              # the fields of POST /learn-loop, with 240 tasks and their answers
python3 orders.py demonstrations   # 200 conversations, of which half track an order whatever its state
"""

import json
import sys
from random import Random

INSTRUCTIONS = "Find the order that is on its way, track it, and reply with the date."
TOOLS = {"find_orders": ("customer", "List a customer's orders."), "track_order": ("number", "Say when one arrives.")}
MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October")
DEMONSTRATIONS, TASKS = 200, 240


def shop():
    """Return all customers with their orders, the same at each start: number, state and date."""
    random, customers = Random(0), {}
    numbers = random.sample(range(100, 1000), 2 * (DEMONSTRATIONS + TASKS))
    while len(customers) < DEMONSTRATIONS + TASKS:
        name = "".join(random.choice("bdfgklmnprstv") + random.choice("aeiou") for _ in range(2)).capitalize()
        states = random.sample(["delivered", "on its way"], 2)
        dates = [f"{random.randint(1, 28)} {random.choice(MONTHS)}" for _ in states]
        if name not in customers:
            customers[name] = [(str(numbers.pop()), state, date) for state, date in zip(states, dates, strict=True)]
    return customers


CUSTOMERS = shop()


def call(tool, arguments):
    """Do what a tool does, and return what the agent reads."""
    value = str(arguments.get(TOOLS[tool][0]))
    if tool == "find_orders":
        return "\n".join(f"{number} {state}" for number, state, _ in CUSTOMERS.get(value, ())) or "No such customer."
    dates = {number: date for orders in CUSTOMERS.values() for number, _, date in orders}
    return dates.get(value, "No such order.")


def described(key):
    """Return the tools with the schema of their arguments under this key, as MCP or OpenAI names it."""
    return [
        {
            "name": tool,
            "description": description,
            key: {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]},
        }
        for tool, (argument, description) in TOOLS.items()
    ]


def task(customer):
    """Ask for the order that is on its way, and say what is right."""
    [answer] = [date for _, state, date in CUSTOMERS[customer] if state == "on its way"]
    return {"task": f"When does the order of {customer} arrive?", "answer": answer}


def run():
    """Return the fields of POST /learn-loop, but the demonstrations."""
    scenarios = [task(customer) for customer in list(CUSTOMERS)[DEMONSTRATIONS:]]
    config = {"server": {"command": ["python3", __file__]}, "instructions": INSTRUCTIONS, "scenarios": scenarios}
    return {
        "environment": {"name": "mcp", "config": config},
        "judge": {"name": "reference"},
        "iterations": 6,
        "evaluation": {"every": 6, "scenarios": 24, "test_scenarios": 24, "samples": 1},
    }


def conversation(customer, is_careless):
    """Return how somebody did a task: a careless one tracks the first order."""
    orders = CUSTOMERS[customer]
    number, _, date = next(order for order in orders if is_careless or order[1] == "on its way")
    messages = [{"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": task(customer)["task"]}]
    for tool, value in (("find_orders", customer), ("track_order", number)):
        arguments = {TOOLS[tool][0]: value}
        function = {"name": tool, "arguments": json.dumps(arguments)}
        messages.append({"role": "assistant", "tool_calls": [{"id": tool, "type": "function", "function": function}]})
        messages.append({"role": "tool", "tool_call_id": tool, "content": call(tool, arguments)})
    messages.append({"role": "assistant", "content": date})
    return {"messages": messages, "tools": [{"type": "function", "function": tool} for tool in described("parameters")]}


def reply(method, params):
    """Return the result of a request of MCP; None for a notification."""
    match method:
        case "initialize":
            about = {"name": "orders", "version": "1"}
            return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": about}
        case "tools/list":
            return {"tools": described("inputSchema")}
        case "tools/call":
            return {"content": [{"type": "text", "text": call(params["name"], params.get("arguments", {}))}]}
        case "ping":
            return {}


def serve():
    for line in sys.stdin:
        message = json.loads(line)
        if (result := reply(message["method"], message.get("params", {}))) is not None:
            print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)


match sys.argv[1:]:
    case ["run"]:
        print(json.dumps(run(), indent=2))
    case ["demonstrations"]:
        for number, customer in enumerate(list(CUSTOMERS)[:DEMONSTRATIONS]):
            print(json.dumps(conversation(customer, is_careless=number % 2 == 1)))
    case _:
        serve()
