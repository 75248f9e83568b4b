// Validates an OpenAPI document against the specification's own schema.
// Run: node check.mjs FILE, as ../openapi.sh does. Exit status 1 and the errors if it is wrong.
import { readFileSync } from "node:fs";
import { Validator } from "@seriousme/openapi-schema-validator";

const file = process.argv[2];
const validator = new Validator();
const { valid, errors } = await validator.validate(JSON.parse(readFileSync(file, "utf8")));
if (!valid || validator.version !== "3.1") {
  console.error(`${file}: not valid OpenAPI 3.1`);
  console.error(JSON.stringify(errors, null, 2));
  process.exit(1);
}
