//! Exchange of endpoint addresses between the ranks of a job.
