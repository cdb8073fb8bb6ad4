// SPDX-License-Identifier: Apache-2.0
// Begin when every section is defined.

start();
