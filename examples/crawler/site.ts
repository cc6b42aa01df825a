import { createServer, type Server, type ServerResponse } from "node:http";
import { once } from "node:events";
import type { AddressInfo } from "node:net";
import { setTimeout as pause } from "node:timers/promises";

/** A slow little site on loopback that counts what is asked of it. Each of its pages links to two more of its own. */
export class Site {
  /** When each request came, in milliseconds. */
  readonly asked: number[] = [];
  /** The most requests that were under way at once. */
  most = 0;
  /** Another site that its front page links to. */
  neighbour: Site | null = null;
  readonly #pages: number;
  readonly #server: Server;
  #underWay = 0;

  constructor(pages: number) {
    this.#pages = pages;
    this.#server = createServer((request, answer) => void this.#answer(Number(request.url?.slice(1)), answer));
  }

  async listen(): Promise<void> {
    this.#server.listen(0, "127.0.0.1");
    await once(this.#server, "listening");
  }

  get host(): string {
    return `127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  get front(): string {
    return `http://${this.host}/1`;
  }

  close(): void {
    this.#server.close();
    this.#server.closeAllConnections();
  }

  async #answer(page: number, answer: ServerResponse): Promise<void> {
    this.asked.push(performance.now());
    this.most = Math.max(this.most, ++this.#underWay);
    // The client may be killed before there is an answer.
    const gone = new AbortController();
    answer.once("close", () => gone.abort());
    await pause(10, undefined, { signal: gone.signal }).catch(() => {});
    this.#underWay--;
    answer.end(this.#html(page));
  }

  #html(page: number): string {
    const links = [2 * page, 2 * page + 1].filter((next) => next <= this.#pages).map((next) => `/${next}`);
    if (page === 1 && this.neighbour !== null) links.push(this.neighbour.front);
    const list = [...links, "/1"].map((href) => `<a href="${href}">${href}</a>`);
    return `<title>Page ${page}</title>${list.join(" ")}`;
  }
}
