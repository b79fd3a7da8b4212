/** The agent of one device, and its model. Apps use this package, and with their own runtimes also {@code backends}. */
@NullMarked
package org.sedge.edge;

import org.jspecify.annotations.NullMarked;
