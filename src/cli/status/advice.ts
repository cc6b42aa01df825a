import type { Command } from "commander";
import type { Alarm } from "../../runtime/status/alarms.ts";
import { isAddress } from "../../store/open-store.ts";
import { configOf, namedConfig } from "../config.ts";
import { pathOf } from "../database.ts";

/** The alarms with hints that can be pasted into this shell: they name the same database and config as the command. */
export function withAdvice(alarms: readonly Alarm[], command: Command): Alarm[] {
  const hasModules = (configOf(command)?.modules.length ?? 0) > 0;
  const same = sameDatabase(command);
  return alarms.map((alarm) => ({ ...alarm, hint: adviceOf(alarm.hint, hasModules, same) }));
}

function adviceOf(hint: string, hasModules: boolean, same: string): string {
  const commands = hint.split(" && ").map((text) => {
    if (!text.startsWith("holdfast ")) return text;
    // What a config does not name, the operator has to: a hint says where.
    const named = hasModules ? text.replace(/ FILES…$/, "") : text.replace(/^(holdfast builds resume \S+)$/, "$1 --file FILE");
    return named + same;
  });
  return commands.join(" && ");
}

function sameDatabase(command: Command): string {
  const { db, schema } = command.optsWithGlobals<{ db?: string; schema?: string }>();
  // The address of a server is shown without user and password: they come from PGUSER and PGPASSWORD then.
  const shown = db === undefined || !isAddress(db) ? db : `postgres://${pathOf(command)}`;
  const given = { db: shown, schema, config: namedConfig(command) };
  const options = Object.entries(given).filter(([, value]) => value !== undefined);
  return options.map(([name, value]) => ` --${name} ${quoted(value as string)}`).join("");
}

/** As one word of a shell. */
function quoted(text: string): string {
  return /^[\w./:@%+=,-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}
