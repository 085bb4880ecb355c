/* SPDX-License-Identifier: Apache-2.0
 * `switchml genkey`: a new key, printed or added to a key file. */
#pragma once

int sml_genkey_run(int argc, char **argv);
