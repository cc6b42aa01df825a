import { MIGRATIONS } from "../../src/store/sqlite/migrate.ts";
import { LATER } from "./old-database.ts";

/* Makes this process one of a Holdfast with a later schema. */
MIGRATIONS.push(LATER);
