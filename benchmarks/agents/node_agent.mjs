// The mail job as a Node program without packages: a loop around fetch.
const { OPENAI_BASE_URL, OPENAI_API_KEY, OPENAI_MODEL, LEARNLOOP_TASK, LEARNLOOP_SESSION, MAIL_DESK_URL } = process.env
const { LEARNLOOP_PROMPT, READS_PROMPT, STREAMS } = process.env

async function answer(url, body, headers = {}) {
  const sent = { method: 'POST', headers: { 'content-type': 'application/json', ...headers }, body: JSON.stringify(body) }
  const reply = await fetch(url, sent)
  if (!reply.ok) throw new Error(`${url} answered ${reply.status}: ${await reply.text()}`)
  return reply
}

const post = async (...request) => (await answer(...request)).json()

// The message of a streamed completion.
async function streamed(url, body, headers) {
  const message = { role: 'assistant', content: '' }
  const text = await (await answer(url, { ...body, stream: true }, headers)).text()
  for (const data of text.match(/(?<=^data: ){.*/gm)) {
    const { content, tool_calls: calls = [] } = JSON.parse(data).choices[0]?.delta ?? {}
    message.content += content ?? ''
    for (const { index, id, function: called } of calls) {
      message.tool_calls ??= []
      const call = (message.tool_calls[index] ??= { id, type: 'function', function: { name: '', arguments: '' } })
      call.function.name += called.name ?? ''
      call.function.arguments += called.arguments ?? ''
    }
  }
  return message
}

const desk = (path, body) => post(`${MAIL_DESK_URL}/${path}`, { session: LEARNLOOP_SESSION, ...body })

async function work() {
  const { messages, tools, max_turns: turns } = await desk('open', { task: JSON.parse(LEARNLOOP_TASK) })
  const prompt = READS_PROMPT ? JSON.parse(LEARNLOOP_PROMPT || '{}') : {}
  messages[0].content = prompt.system ?? messages[0].content
  for (const { function: tool } of tools) tool.description = prompt[`tool:${tool.name}`] ?? tool.description
  for (let turn = 0; turn < turns; turn++) {
    const asked = { model: OPENAI_MODEL, messages, tools }
    const headers = { authorization: `Bearer ${OPENAI_API_KEY}` }
    const url = `${OPENAI_BASE_URL}/chat/completions`
    const message = STREAMS ? await streamed(url, asked, headers) : (await post(url, asked, headers)).choices[0].message
    messages.push(message)
    if (!message.tool_calls?.length) return (await desk('end', { reason: 'malformed' })).outcome
    for (const call of message.tool_calls) {
      const result = await desk('call', { name: call.function.name, arguments: call.function.arguments })
      if (result.final) return result.outcome
      messages.push({ role: 'tool', tool_call_id: call.id, content: result.content })
    }
  }
  return (await desk('end', { reason: 'out_of_turns' })).outcome
}

console.log(JSON.stringify(await work()))
