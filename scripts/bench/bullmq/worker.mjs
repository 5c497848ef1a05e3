// BullMQ beside later: `seed` adds jobs that are due at one instant (0: at once), `work` posts them as later posts its
// tasks, `finish` claims and finishes so many of them, doing nothing for each, and prints how long that took.
import { randomUUID } from 'node:crypto'
import { Queue, Worker } from 'bullmq'
import IORedis from 'ioredis'
import { Pool } from 'undici'

const CHUNK = 1000
const CONNECTIONS = 256
const CONSUMERS = 64

const [command, socket, ...settings] = process.argv.slice(2)
const connection = new IORedis({ path: socket, maxRetriesPerRequest: null })

async function seed(count, dueMs) {
  const queue = new Queue('order', { connection })
  const due = Number(dueMs)
  for (let added = 0; added < Number(count); added += CHUNK) {
    const jobs = Array.from({ length: Math.min(CHUNK, Number(count) - added) }, () => ({
      name: 'order',
      data: { id: randomUUID(), topic: 'order', content: 'hello', due: new Date(due).toISOString() },
      opts: { delay: Math.max(due - Date.now(), 0), attempts: 4, removeOnComplete: true },
    }))
    await queue.addBulk(jobs)
  }
  await queue.close()
  connection.disconnect()
}

function work(url) {
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

async function finish(count) {
  const worker = new Worker('order', async () => {}, { connection, concurrency: CONSUMERS, autorun: false })
  worker.on('failed', (job, error) => console.error(error.message))
  await worker.waitUntilReady()
  let finished = 0
  const all = new Promise((resolve) => {
    worker.on('completed', () => {
      finished += 1
      if (finished === Number(count)) resolve()
    })
  })
  const started = performance.now()
  const before = process.cpuUsage()
  worker.run()
  await all
  const seconds = (performance.now() - started) / 1000
  const { user, system } = process.cpuUsage(before)
  await worker.close()
  connection.disconnect()
  console.log(JSON.stringify({ seconds, cpu_s: (user + system) / 1e6 }))
}

await { seed, work, finish }[command](...settings)
