import { once } from "node:events";
import type { Command } from "commander";
import { HoldfastError } from "../../core/text/errors.ts";
import { definedOnly } from "../../core/text/options.ts";
import { atLeast, readToken } from "../arguments.ts";
import { configOf, modulesOf } from "../config.ts";
import { openExisting } from "../database.ts";
import { definitionsIn, pipelinesIn } from "../modules.ts";
import { answer } from "../render/output.ts";
import { paint } from "../render/table.ts";
import { untilInterrupted } from "../signals.ts";
import { addCommand } from "../verb.ts";

const DEFAULT_PORT = 4_170;

interface Options {
  host: string;
  port: number;
  token?: string;
}

export function uiCommand(parent: Command): void {
  addCommand(parent, "ui", {
    description:
      "Serve the dashboard and the HTTP API of this database until a signal. Programs send the token as a Bearer header; a " +
      "browser opens the printed address, whose code is valid once, for five minutes. Without a token one is made for this " +
      "process. A token is required to listen on any address other than loopback.",
    examples: ["holdfast ui", "holdfast ui --port 8080", "HOLDFAST_UI_TOKEN=… holdfast ui --host 0.0.0.0"],
  })
    .option("--host <name>", "address to listen on", "127.0.0.1")
    .option("--port <number>", "port to listen on; 0 takes a free one", atLeast(0, 65_535), DEFAULT_PORT)
    .option("--token <token>", "token for programs: - reads it from standard input (default: HOLDFAST_UI_TOKEN, else a new one)")
    .action(async (options: Options, command: Command) => {
      const token = (await readToken(options.token)) ?? process.env["HOLDFAST_UI_TOKEN"];
      if (token !== undefined && token.length < 16)
        throw new HoldfastError(
          "USAGE",
          "The token has fewer than 16 characters.",
          "Give a longer one, e.g. `openssl rand -hex 32`.",
        );
      using over = untilInterrupted();
      await using hf = await openExisting(command);
      const config = configOf(command);
      const files = config === null ? [] : modulesOf(config);
      const jobs = await definitionsIn(files);
      const pipelines = (await pipelinesIn(files)).map(({ pipeline }) => pipeline);
      const { serve } = await import("../../server/serve.ts");
      await using serving = await serve(hf, {
        host: options.host,
        port: options.port,
        jobs,
        pipelines,
        ...definedOnly({ token }),
      });
      const { address, token: made } = serving;
      const login = serving.newLoginAddress();
      answer(command, { address, login, ...definedOnly({ token: token === undefined ? made : undefined }) }, () =>
        [
          `Dashboard  ${paint("bold", String(login))}`,
          `API        ${address}api/v1/openapi.json`,
          ...(token === undefined ? [`Token      ${made}`] : []),
          process.stdin.isTTY ? "Enter prints another address for a browser, Ctrl-C ends it." : "Ctrl-C ends it.",
        ].join("\n"),
      );
      const again = () => {
        const another = serving.newLoginAddress();
        answer(command, { login: another }, () => `Dashboard  ${another}`);
      };
      if (process.stdin.isTTY) process.stdin.on("data", again);
      if (!over.aborted) await once(over, "abort");
      process.stdin.off("data", again).pause();
    });
}
