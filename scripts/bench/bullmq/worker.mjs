// BullMQ beside later: `seed` adds jobs that are due at one instant, `work` posts them as later posts its tasks.
import { randomUUID } from 'node:crypto'
import { Queue, Worker } from 'bullmq'
import IORedis from 'ioredis'
import { Pool } from 'undici'

const CHUNK = 1000
const CONNECTIONS = 256

const [command, socket, url, count, dueMs] = process.argv.slice(2)
const connection = new IORedis({ path: socket, maxRetriesPerRequest: null })

async function seed() {
  const queue = new Queue('order', { connection })
  const due = Number(dueMs)
  for (let added = 0; added < Number(count); added += CHUNK) {
    const jobs = Array.from({ length: Math.min(CHUNK, Number(count) - added) }, () => ({
      name: 'order',
      data: { id: randomUUID(), topic: 'order', content: 'hello', due: new Date(due).toISOString() },
      opts: { delay: due - Date.now(), attempts: 4, removeOnComplete: true },
    }))
    await queue.addBulk(jobs)
  }
  await queue.close()
  connection.disconnect()
}

function work() {
  const { origin, pathname } = new URL(url)
  const pool = new Pool(origin, { connections: CONNECTIONS, pipelining: 1 })

  async function post(job) {
    const { id, topic, content, due } = job.data
    const response = await pool.request({
      path: pathname,
      method: 'POST',
      headers: {
        'content-type': 'application/json',
        'user-agent': 'later/0.0.0',
        'accept-encoding': 'identity',
        'webhook-id': id,
        'webhook-timestamp': String(Math.floor(Date.now() / 1000)),
        'later-attempt': String(job.attemptsMade + 1),
        'later-due': due,
        'later-created': due,
        'later-timeout': '15',
        'later-failures': '0',
        'later-max-retry': '3',
      },
      body: JSON.stringify({ id, topic, content }),
    })
    const answer = await response.body.json()
    if (response.statusCode !== 200 || answer.code !== 100) throw new Error(`answered ${response.statusCode}`)
  }

  const worker = new Worker('order', post, { connection, concurrency: CONNECTIONS })
  worker.on('ready', () => console.log('ready'))
  worker.on('failed', (job, error) => console.error(error.message))
}

await (command === 'seed' ? seed() : work())
