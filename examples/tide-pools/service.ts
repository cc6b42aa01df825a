import { hash } from "node:crypto";
import { once } from "node:events";
import { createServer, type IncomingMessage, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { setTimeout as pause } from "node:timers/promises";
import type { Cost } from "../../src/index.ts";

/** Millionths of a dollar: for each token that is read, and for the answer. */
const [A_TOKEN, AN_ANSWER] = [3, 900];
const ANSWER_TOKENS = 60;

export interface Answer {
  summary: string;
  /** Nothing, if an earlier request with the same key was billed. */
  billed: Cost;
}

/** What the service will bill for a text. A token is about four letters. */
export function price(text: string): { usd: number; tokens: number } {
  const tokens = Math.ceil(text.length / 4);
  return { usd: (tokens * A_TOKEN + AN_ANSWER) / 1e6, tokens: tokens + ANSWER_TOKENS };
}

/**
 * Stands for a hosted language model that sends bills: it takes its time, and costs the same for the
 * same text. It bills when a request arrives, and a request with the same idempotency key only once. Its customers' crashes
 * are none of its business, so it runs in the process that survives, and its books are a witness of their own.
 */
export class Service implements AsyncDisposable {
  url = "";
  /** Called for each request, with how many of its account are under way. */
  onRequest: (account: string, underWay: number) => void = () => {};
  readonly #bills = new Map<string, Map<string, Cost & { usd: number }>>();
  readonly #requests = new Map<string, number>();
  readonly #underWay = new Map<string, number>();
  readonly #server: Server;

  constructor() {
    this.#server = createServer(async (request, response) => {
      const account = request.url as string;
      const answer = await this.#answer(account, request.headers["idempotency-key"] as string, await bodyOf(request));
      response.end(JSON.stringify(answer));
    });
  }

  async listen(): Promise<this> {
    await once(this.#server.listen(0, "127.0.0.1"), "listening");
    this.url = `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
    return this;
  }

  /** What an account has asked for, and what it has to pay. */
  bill(account: string): { requests: number; billed: number; usd: number } {
    const billed = [...(this.#bills.get(account)?.values() ?? [])];
    const micros = billed.reduce((sum, { usd }) => sum + Math.round(usd * 1e6), 0);
    return { requests: this.#requests.get(account) ?? 0, billed: billed.length, usd: micros / 1e6 };
  }

  async #answer(account: string, key: string, text: string): Promise<Answer> {
    this.#requests.set(account, (this.#requests.get(account) ?? 0) + 1);
    const bills = this.#bills.get(account) ?? new Map<string, Cost & { usd: number }>();
    this.#bills.set(account, bills);
    const isNew = !bills.has(key);
    if (isNew) bills.set(key, price(text));
    this.#moves(account, 1);
    this.onRequest(account, this.#underWay.get(account) ?? 0);
    await pause(120 + (Number.parseInt(hash("sha256", text).slice(0, 4), 16) % 120));
    this.#moves(account, -1);
    // What a model says is made of what it was told.
    const [first = "", second = ""] = text.split(/(?<=\.)\s/);
    return { summary: `${first} ${second}`.replaceAll("\n", " ").trim(), billed: isNew ? price(text) : {} };
  }

  #moves(account: string, by: number): void {
    this.#underWay.set(account, (this.#underWay.get(account) ?? 0) + by);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#server.closeAllConnections();
    this.#server.close();
    await once(this.#server, "close");
  }
}

async function bodyOf(request: IncomingMessage): Promise<string> {
  const pieces: Buffer[] = [];
  for await (const piece of request) pieces.push(piece as Buffer);
  return Buffer.concat(pieces).toString("utf8");
}
