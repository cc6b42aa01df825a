import { createHmac, timingSafeEqual } from "node:crypto";
import { createServer, type IncomingHttpHeaders, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import type { TestContext } from "node:test";

export interface Received {
  path: string;
  headers: IncomingHttpHeaders;
  body: string;
}

/** How it answers: a status, headers, or nothing at all. */
export type Answer = { status: number; headers?: Record<string, string> } | "silence";

/** The other side of a webhook: a real server on loopback that remembers its requests, and answers as the test says. */
export class WebhookServer {
  readonly received: Received[] = [];
  answer: (received: Received) => Answer | Promise<Answer> = () => ({ status: 204 });
  readonly #server: Server;
  readonly #waiting = new Set<() => void>();

  static async start(t: TestContext): Promise<WebhookServer> {
    const server = new WebhookServer();
    await new Promise<void>((resolve) => server.#server.listen(0, "127.0.0.1", resolve));
    t.after(() => server.stop());
    return server;
  }

  private constructor() {
    this.#server = createServer(async (request, response) => {
      const chunks: Buffer[] = [];
      try {
        for await (const chunk of request) chunks.push(chunk as Buffer);
      } catch {
        // The sender was killed in the middle: the request has not arrived.
        return;
      }
      const received = { path: request.url ?? "", headers: request.headers, body: Buffer.concat(chunks).toString("utf8") };
      this.received.push(received);
      const answer = await this.answer(received);
      if (answer !== "silence") response.writeHead(answer.status, answer.headers ?? {}).end();
      for (const look of this.#waiting) look();
    });
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  /** Resolves when this holds of what came so far. */
  async until(is: (received: readonly Received[]) => boolean): Promise<void> {
    await new Promise<void>((resolve) => {
      const look = () => {
        if (!is(this.received)) return;
        this.#waiting.delete(look);
        resolve();
      };
      this.#waiting.add(look);
      look();
    });
  }

  stop(): Promise<unknown> {
    this.#server.closeAllConnections();
    return new Promise((resolve) => this.#server.close(resolve));
  }
}

/**
 * The receiver's side of Standard Webhooks, written out by its rules: the id, the timestamp and the body, with full stops
 * between them, under HMAC-SHA256 with the bytes that the secret's base64 stands for. One of several signatures may fit.
 */
export function isAuthentic({ headers, body }: Received, secret: string): boolean {
  const key = Buffer.from(secret.slice("whsec_".length), "base64");
  const content = [headers["webhook-id"], headers["webhook-timestamp"], body].join(".");
  const expected = createHmac("sha256", key).update(Buffer.from(content, "utf8")).digest();
  return String(headers["webhook-signature"])
    .split(" ")
    .some((signature) => {
      const [version, text] = signature.split(",");
      const given = Buffer.from(text ?? "", "base64");
      return version === "v1" && given.length === expected.length && timingSafeEqual(given, expected);
    });
}
