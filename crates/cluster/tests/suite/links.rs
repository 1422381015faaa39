//! One suite for every transport.
