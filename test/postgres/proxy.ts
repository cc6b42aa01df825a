import { createServer, connect, type AddressInfo, type Server, type Socket } from "node:net";

/** Which connections: by the name under which they appear in the server's list. */
export interface Where {
  of: string;
  /** The how many-th statement from now on, from 1; or the first of these words. */
  at: number | string;
  /**
   * "before": it never reaches the server. "after": the server has done it, and its answer never reaches the client.
   * "held": like "before", but the server does not learn that the client is gone, and gets the statement at `release()`.
   * "unsynced": the server gets all of it but the last bytes, and neither side learns that the rest is lost.
   * "spoiled": nothing is cut, but the server gets something that makes no sense; for statements without values.
   */
  when: "before" | "after" | "held" | "unsynced" | "spoiled";
  /** As an orderly end of both connections, or as one that a firewall or a crash makes. */
  how?: "end" | "reset";
}

export interface Cut {
  /** The statement at which it happened; null while it has not. */
  readonly at: string | null;
  readonly happened: Promise<void>;
  /** The server gets the statement that was held; or never gets it, and learns that the client is gone. */
  release(how?: "sent" | "lost"): void;
}

/**
 * Stands before the server, on loopback, and loses connections at a chosen statement. It knows as much of PostgreSQL's
 * protocol as it takes to tell one statement from the next, and their answers.
 */
export class Proxy {
  readonly #server: { host: string; port: number };
  readonly #listener: Server;
  readonly #lines = new Set<Line>();
  #port = 0;
  #cut: Arm | null = null;
  #isMute = false;
  /** Accepts, and hangs up at once, as a balancer does that has no server left. */
  #hangsUp = false;

  static async before(url: string): Promise<Proxy> {
    const { hostname, port } = new URL(url);
    const proxy = new Proxy({ host: hostname, port: Number(port || 5432) });
    await proxy.up();
    return proxy;
  }

  private constructor(server: { host: string; port: number }) {
    this.#server = server;
    this.#listener = createServer({ noDelay: true }, (client) => this.#accept(client));
  }

  /** The same address, by way of this. */
  url(url: string): string {
    const through = new URL(url);
    through.host = `127.0.0.1:${this.#port}`;
    return through.href;
  }

  /** How many connections there are of this name. */
  connections(of: string): number {
    return [...this.#lines].filter(({ name }) => name === of).length;
  }

  cut(where: Where): Cut {
    this.#cut = new Arm(where);
    return this.#cut;
  }

  /** Of those that are counted from now on, how many statements there were. */
  count(of: string): { readonly statements: string[] } {
    return this.cut({ of, at: Number.POSITIVE_INFINITY, when: "before" }) as Arm;
  }

  /** Every connection is lost, and none is taken. */
  async down(how: "refuses" | "hangs up" = "refuses"): Promise<void> {
    this.#hangsUp = how === "hangs up";
    if (!this.#hangsUp && this.#listener.listening) this.#listener.close();
    for (const line of this.#lines) line.lose("reset");
  }

  async up(): Promise<void> {
    this.#hangsUp = false;
    if (this.#listener.listening) return;
    await new Promise<void>((resolve) => this.#listener.listen(this.#port, "127.0.0.1", resolve));
    this.#port = (this.#listener.address() as AddressInfo).port;
  }

  /** As if the cable were pulled: nothing gets through, and no side gets an error. New connections neither. */
  mute(): void {
    this.#isMute = true;
    for (const line of this.#lines) line.mute();
  }

  /** The cable is back; what it lost meanwhile is not. */
  unmute(): void {
    this.#isMute = false;
  }

  async close(): Promise<void> {
    for (const line of this.#lines) line.lose("reset");
    if (this.#listener.listening) await new Promise((resolve) => this.#listener.close(resolve));
  }

  #accept(client: Socket): void {
    if (this.#hangsUp) {
      client.destroy();
      return;
    }
    const server = connect({ ...this.#server, noDelay: true });
    const line = new Line(client, server, (name) => {
      const cut = this.#cut;
      return cut !== null && cut.where.of === name ? cut : null;
    });
    this.#lines.add(line);
    if (this.#isMute) line.mute();
    server.once("close", () => this.#lines.delete(line));
  }
}

/** One cut that is to come. */
class Arm implements Cut {
  readonly where: Where;
  readonly statements: string[] = [];
  readonly happened: Promise<void>;
  at: string | null = null;
  #happen: () => void = () => {};
  #release: (how: "sent" | "lost") => void = () => {};

  constructor(where: Where) {
    this.where = where;
    this.happened = new Promise((resolve) => (this.#happen = resolve));
  }

  /** Whether this is the statement. */
  next(text: string): boolean {
    if (this.at !== null) return false;
    this.statements.push(text);
    if (this.where.at !== (typeof this.where.at === "number" ? this.statements.length : text)) return false;
    this.at = text;
    return true;
  }

  did(release: (how: "sent" | "lost") => void = () => {}): void {
    this.#release = release;
    this.#happen();
  }

  release(how: "sent" | "lost" = "sent"): void {
    this.#release(how);
  }
}

/** A statement on its way: from its first message to the one after which the server answers. */
interface Statement {
  text: string;
  cut: Arm | null;
}

/** One client's connection, and the one to the server that stands for it. */
class Line {
  /** What it calls itself. */
  name = "";
  readonly #client: Socket;
  readonly #server: Socket;
  readonly #armed: (name: string) => Arm | null;
  readonly #prepared = new Map<string, string>();
  /** Sent and not answered; the first is the start of the session. */
  readonly #open: Statement[] = [{ text: "", cut: null }];
  /** The one whose messages are coming in. */
  #coming: Statement | null = null;
  #asked = Buffer.alloc(0);
  #answered = Buffer.alloc(0);
  #started = false;
  #isMute = false;
  #isHeld = false;
  #isSpoiled = false;
  /** What the client says from here on goes nowhere. */
  #held: Buffer[] | null = null;

  constructor(client: Socket, server: Socket, armed: (name: string) => Arm | null) {
    this.#client = client;
    this.#server = server;
    this.#armed = armed;
    client.on("data", (bytes) => this.#isMute || this.#ask(bytes));
    server.on("data", (bytes) => this.#isMute || this.#answer(bytes));
    client.on("error", () => {});
    server.on("error", () => {});
    client.on("close", () => this.#isMute || this.#isHeld || server.destroy());
    server.on("close", () => this.#isMute || client.destroy());
  }

  lose(how: "end" | "reset"): void {
    end(this.#client, how);
    end(this.#server, how);
  }

  mute(): void {
    this.#isMute = true;
  }

  #ask(bytes: Buffer): void {
    this.#asked = Buffer.concat([this.#asked, bytes]);
    for (;;) {
      const head = this.#started ? 1 : 0;
      if (this.#asked.length < head + 4) return;
      const length = head + this.#asked.readUInt32BE(head);
      if (this.#asked.length < length) return;
      const message = this.#asked.subarray(0, length);
      this.#asked = this.#asked.subarray(length);
      if (!this.#started) {
        this.#started = true;
        this.name = startupName(message);
        this.#server.write(message);
      } else this.#message(message);
    }
  }

  #message(message: Buffer): void {
    if (this.#held !== null) {
      this.#held.push(message);
      return;
    }
    const type = String.fromCharCode(message[0] as number);
    if ("QPBDES".includes(type) && this.#coming === null) this.#begin(message, type);
    if (this.#held !== null) return;
    if (type === "S" && this.#coming?.cut?.where.when === "unsynced") {
      this.mute();
      return this.#coming.cut.did();
    }
    this.#server.write(this.#isSpoiled ? NONSENSE : message);
    this.#isSpoiled = false;
    if (type === "Q" || type === "S") {
      const statement = this.#coming as Statement;
      this.#open.push(statement);
      this.#coming = null;
      // Nothing after it gets through.
      if (statement.cut !== null) this.#held = [];
    }
  }

  /** A first message names its statement: by its text, or by the name under which it was prepared. */
  #begin(message: Buffer, type: string): void {
    const [first, second] = message.subarray(5).toString("latin1").split("\0", 2) as [string, string];
    if (type === "P") this.#prepared.set(first, second);
    // A prepared one is bound: portal, statement.
    const text = type === "Q" ? first : (this.#prepared.get(type === "P" ? first : second) ?? type);
    const armed = this.#armed(this.name);
    const cut = armed !== null && armed.next(text) ? armed : null;
    this.#coming = { text, cut };
    if (cut === null || cut.where.when === "after" || cut.where.when === "unsynced") return;
    if (cut.where.when === "spoiled") {
      this.#isSpoiled = true;
      this.#coming = { text, cut: null };
      return cut.did();
    }
    this.#held = [message];
    if (cut.where.when === "before") {
      this.lose(cut.where.how ?? "end");
      cut.did();
      return;
    }
    this.#isHeld = true;
    end(this.#client, cut.where.how ?? "end");
    cut.did((how) => {
      if (how === "sent") for (const held of this.#held ?? []) this.#server.write(held);
      this.#server.end();
    });
  }

  #answer(bytes: Buffer): void {
    this.#answered = Buffer.concat([this.#answered, bytes]);
    for (;;) {
      if (this.#answered.length < 5) return;
      const length = 1 + this.#answered.readUInt32BE(1);
      if (this.#answered.length < length) return;
      const message = this.#answered.subarray(0, length);
      this.#answered = this.#answered.subarray(length);
      // None is open while one is described, which is answered before the whole of it was sent.
      const cut = this.#open[0]?.cut ?? null;
      if (cut === null) this.#client.write(message);
      if (message[0] !== READY) continue;
      this.#open.shift();
      if (cut === null) continue;
      this.lose(cut.where.how ?? "end");
      cut.did();
      return;
    }
  }
}

const READY = "Z".charCodeAt(0);
const NONSENSE = Buffer.from("Q\0\0\0\x06!\0", "latin1");

function end(socket: Socket, how: "end" | "reset"): void {
  if (how === "reset") socket.resetAndDestroy();
  else socket.destroy();
}

/** Pairs of name and value, each ended by a zero. */
function startupName(message: Buffer): string {
  const words = message.subarray(8).toString("latin1").split("\0");
  const at = words.indexOf("application_name");
  return at < 0 ? "" : (words[at + 1] as string);
}
