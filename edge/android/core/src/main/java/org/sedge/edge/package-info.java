/** The agent of one device, and its model; an app needs this package, and {@code backends} for runtimes of its own. */
@NullMarked
package org.sedge.edge;

import org.jspecify.annotations.NullMarked;
