// Which of the messages on stdin, [{secret, body, headers}, ...], the reference library verifies: [true, false, ...].
const { Webhook } = require("standardwebhooks");

const verified = ({ secret, body, headers }) => {
  try {
    new Webhook(secret).verify(body, headers);
    return true;
  } catch {
    return false;
  }
};

const messages = JSON.parse(require("fs").readFileSync(0, "utf8"));
process.stdout.write(JSON.stringify(messages.map(verified)));
