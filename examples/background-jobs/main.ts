/**
 * The background jobs of a web app, with nothing but node:http: signing up writes the user's row and enqueues the welcome
 * mail in one transaction of one file; the mail is retried until the mail server takes it; and a digest goes out by a
 * schedule, once however many processes of the app run.
 *
 *   node examples/background-jobs/main.ts [folder]
 */
import { once } from "node:events";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { z } from "zod";
import { HoldfastError, job, open } from "../../src/index.ts";
import { exampleFolder } from "../folder.ts";

using folder = exampleFolder("background-jobs");
const hf = await open(join(folder.path, "app.db"));
await hf.transaction(({ db }) => db.exec("create table if not exists users (email text primary key, name text not null)"));

/** Stands for a mail server that is too busy for one of them at first. It takes each key once. */
const outbox = new Map<string, string>();
let refusals = 2;
async function send(mail: string, idempotencyKey: string): Promise<void> {
  if (mail.includes("Ada") && refusals-- > 0) throw new Error("450 try again later");
  outbox.set(idempotencyKey, mail);
}

const welcome = job({
  name: "welcome",
  input: z.object({ email: z.email(), name: z.string().min(1) }),
  retry: { attempts: 5, delay: "20ms" },
  run: ({ input, idempotencyKey }) => send(`Welcome, ${input.name}! <${input.email}>`, idempotencyKey),
});

const digest = job<{ to: string }, number>({
  name: "digest",
  run: async ({ input, idempotencyKey }) => {
    const users = await hf.transaction(({ db }) => count(db.prepare("select count(*) as n from users")));
    await send(`Digest for ${input.to}: ${users} users`, idempotencyKey);
    return users;
  },
});

hf.work([welcome, digest], { concurrency: 4 });
await hf.schedule(digest, { cron: "0 7 * * *", timezone: "Europe/Berlin", input: { to: "the team" } });

const server = createServer((request, response) => {
  answer(request, response).catch((error: unknown) => {
    // What the job's schema refuses was thrown inside the transaction: the user's row is gone, too.
    const isRefused = error instanceof HoldfastError && error.code === "INPUT_INVALID";
    reply(response, isRefused ? 422 : 500, { error: isRefused ? error.message : "Something went wrong." });
  });
});
await once(server.listen(0, "127.0.0.1"), "listening");
const at = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;

// From here on it is the users' turn.
await signUp({ email: "ada@example.org", name: "Ada" });
await signUp({ email: "ada@example.org", name: "Ada" }); // a second click
await signUp({ email: "grace@example.org", name: "Grace" });
await signUp({ email: "no-address", name: "" }); // no address: neither a row nor a mail
for (const email of ["ada@example.org", "grace@example.org"]) {
  const { state, attempt } = await hf.jobs.wait(`welcome ${email}`);
  console.log(`the mail to ${email}: ${state} in attempt ${attempt}`);
}
// Seven in the morning is far away; an operator does not have to wait for it.
const triggered = await hf.jobs.wait(await hf.schedules.trigger("digest"));
console.log(`the digest: ${triggered.state}; ${[...outbox.values()].at(-1)}`);
console.log(`${outbox.size} mails were sent`);

server.close();
await hf.close();

async function answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
  if (request.method !== "POST" || request.url !== "/users") return reply(response, 404, { error: "There is nothing here." });
  const user = JSON.parse(await bodyOf(request)) as { email: string; name: string };
  const { duplicate } = await hf.transaction((tx) => {
    tx.db.prepare("insert into users values (?, ?) on conflict do nothing").run(...([user.email, user.name] as never[]));
    return hf.enqueue(welcome, user, { id: `welcome ${user.email}`, tx });
  });
  reply(response, duplicate ? 200 : 201, { email: user.email });
}

async function bodyOf(request: IncomingMessage): Promise<string> {
  const pieces: Buffer[] = [];
  for await (const piece of request) pieces.push(piece as Buffer);
  return Buffer.concat(pieces).toString("utf8");
}

function reply(response: ServerResponse, status: number, body: object): void {
  response.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify(body));
}

function count(statement: object): number {
  return (statement as { get(): { n: number } }).get().n;
}

async function signUp(user: { email: string; name: string }): Promise<void> {
  const response = await fetch(`${at}/users`, { method: "POST", body: JSON.stringify(user) });
  console.log(`POST /users ${user.email} → ${response.status}`);
}
