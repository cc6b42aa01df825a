import { HoldfastError } from "../../../core/text/errors.ts";
import { plural } from "../../../core/text/text.ts";
import type { Rows } from "./driver.ts";

type Limit = [connections: number, kind: "role" | "database", name: string];

/** What a process needs to enqueue and to look; and one that holds leases, all that it may come to have. */
const NEEDED = { process: 3, worker: 7 };

/** How many connections this user may have to this database: where they are too few, a process is in its own way. */
export class Allowance {
  readonly #address: string;
  #limit: Limit | null = null;

  constructor(address: string) {
    this.#address = address;
  }

  async look(rows: Rows): Promise<void> {
    const [limit] = await rows<Limit>(`
      select connections, kind, name from (
        select rolconnlimit, 'role', quote_ident(rolname) from pg_roles where rolname = session_user
        union all
        select datconnlimit, 'database', quote_ident(datname) from pg_database where datname = current_database()
      ) as limits (connections, kind, name)
      where connections >= 0 and not (select rolsuper from pg_roles where rolname = session_user)
      order by connections limit 1`);
    this.#limit = limit ?? null;
  }

  /** As it was when last looked up; null: it is enough, and to wait for others is not in vain. */
  refusal(who: keyof typeof NEEDED): HoldfastError | null {
    if (this.#limit === null || this.#limit[0] >= NEEDED[who]) return null;
    const [connections, kind, name] = this.#limit;
    const needs = { process: "one process needs", worker: "one that holds leases, as a worker does, needs" }[who];
    return new HoldfastError(
      "TOO_MANY_CONNECTIONS",
      `The PostgreSQL server at ${this.#address} allows ${plural(connections, "connection")} to the ${kind} ${name}, and ${needs} ${NEEDED[who]}.`,
      `Raise the limit: \`alter ${kind} ${name} connection limit ${NEEDED.worker}\` is enough for one worker, -1 is none.`,
    );
  }
}
