/* SPDX-License-Identifier: Apache-2.0
 * `switchml genkey`: a new key, printed or added to a key file. */
#ifndef SML_CLI_GENKEY_H
#define SML_CLI_GENKEY_H

int sml_genkey_run(int argc, char **argv);

#endif
