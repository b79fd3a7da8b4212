/**
 * The agent of one device, and its model. Apps use this package, and apps with their own runtimes also use
 * {@code backends}.
 */
@NullMarked
package org.sedge.edge;

import org.jspecify.annotations.NullMarked;
