/** The agent of one device, and its model. An app needs this package, and {@code backends} for its own runtimes. */
@NullMarked
package org.sedge.edge;

import org.jspecify.annotations.NullMarked;
